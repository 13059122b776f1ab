"""The demo model written to a GGUF file, as llama.cpp's converter writes models."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.model_files.gguf_config import SEPARATE, TOP_LEVEL
from tests.engine.model_files.gguf_files import write_all
from tests.k_quants import quantize_q4_k, quantize_q6_k

Type = gguf.GGMLQuantizationType
WRITERS = {Type.Q4_K: quantize_q4_k, Type.Q6_K: quantize_q6_k}


def export_gguf(folder: Path, file: Path, type_of: Callable[[str], Type]) -> Path:
    """Write the Llama model in a folder to `file`, and return it.

    type_of: type of a matrix by its name in the checkpoint. Norms are float32.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("demo")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_tokenizer(writer, folder)
    for name, values in load_file(folder / "model.safetensors").items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        rows = values.float() if heads is None else _in_pairs(values.float(), config[heads])
        kind = type_of(name) if rows.ndim == 2 else Type.F32
        data = WRITERS.get(kind, partial(gguf.quants.quantize, qtype=kind))(rows.numpy())
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    write_all(writer)
    return file


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number in special else 1 for number in range(len(tokens))])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(json.loads((folder / "config.json").read_text())["eos_token_id"])
    template = folder / "chat_template.jinja"
    writer.add_chat_template(template.read_text() if template.exists() else settings["chat_template"])


def _gguf_name(name: str) -> str:
    """Return the name in a GGUF file of a checkpoint's tensor."""
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    if parts[1] == "layers":
        found = {checkpoint: own for own, checkpoint in SEPARATE.items()}
        return f"blk.{parts[2]}.{found['.'.join(parts[3:])]}.{kind}"
    return f"{ {checkpoint: own for own, checkpoint in TOP_LEVEL.items()}[stem] }.{kind}"


def _in_pairs(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of each head with those of its two halves in turn."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
