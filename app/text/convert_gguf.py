"""Child process that converts a GGUF file to a checkpoint folder in Hugging Face layout, with bfloat16 weights.

Run as a script, so that neither numpy nor gguf is loaded into the API process. Its arguments are the file and the
folder to fill. It reads the Llama architecture with the byte-level BPE tokenizer of SmolLM, and refuses other files by
name. The result is that of transformers' own GGUF loader, without torch and several times faster.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ARCHITECTURE, VOCABULARY, SPLITTING = "llama", "gpt2", "smollm"
NORMAL, CONTROL = 1, 3  # kinds of tokens
# Parts of tensor names in GGUF and in a checkpoint.
TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(file: Path, folder: Path) -> None:
    """Write the checkpoint of the GGUF `file` into the existing `folder`. Raises `ValueError` for other kinds of files,
    `OSError`.
    """
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {checkpoint_name(tensor.name): tensor for tensor in reader.tensors}
    _require(fields, "general.architecture", ARCHITECTURE)
    _require(fields, "tokenizer.ggml.model", VOCABULARY)
    _require(fields, "tokenizer.ggml.pre", SPLITTING)
    config = model_config(fields, is_tied="lm_head.weight" not in tensors)
    _write_json(folder / "config.json", config)
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    tokens = fields["tokenizer.ggml.tokens"]
    make_tokenizer(tokens, fields["tokenizer.ggml.token_type"], fields["tokenizer.ggml.merges"]).save(
        str(folder / "tokenizer.json")
    )
    _write_json(folder / "tokenizer_config.json", tokenizer_config(fields, config))
    weights = {name: bfloat16(_matrix(name, tensor, config)) for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", weights)


def checkpoint_name(name: str) -> str:
    """Return the name in a checkpoint of the GGUF tensor `name`. Raises `ValueError` for an unknown one."""
    if match := re.fullmatch(r"(\w+)\.weight", name):
        known = TOP_LEVEL.get(match[1])
    elif match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        part = IN_A_LAYER.get(match[2])
        known = part and f"model.layers.{match[1]}.{part}"
    else:
        known = None
    if known is None:
        raise ValueError(f"tensor {name!r} is not supported")
    return f"{known}.weight"


def model_config(fields: dict[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """Return the content of config.json. is_tied: the output layer shares the embedding's weights."""
    ids = {f"{name}_token_id": fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": is_tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        **ids,
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def make_tokenizer(tokens: list[str], kinds: list[int], merges: list[str]) -> Tokenizer:
    """Return the byte-level BPE tokenizer, which splits numbers into digits. tokens, kinds: by token id. merges: pairs
    of tokens with a space between them. Raises `ValueError` for a kind of token that is not supported.
    """
    if unknown := set(kinds) - {NORMAL, CONTROL}:
        raise ValueError(f"tokens of kind {min(unknown)} are not supported")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(first, second) for first, _, second in (pair.partition(" ") for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def tokenizer_config(fields: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, with the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def _matrix(name: str, tensor: Any, config: dict[str, Any]) -> np.ndarray:
    """Return a tensor in float32, with the rows of queries and keys in the order of a checkpoint."""
    values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if name.endswith("q_proj.weight"):
        return split_halves(values, config["num_attention_heads"])
    if name.endswith("k_proj.weight"):
        return split_halves(values, config["num_key_value_heads"])
    return values


def split_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Return `rows` [heads x head size, hidden] with the even rows of each head before the odd ones.

    GGUF rotates neighbouring dimensions of a head together, a checkpoint those of its two halves.
    """
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bits, as uint16, of finite float32 values rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(file: Path, weights: dict[str, np.ndarray]) -> None:
    """Write bfloat16 tensors. weights: their bits as uint16, by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, bits in weights.items():
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": (offset, offset + bits.nbytes)}
        offset += bits.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # readers expect aligned tensors
    with file.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for bits in weights.values():
            out.write(bits.astype("<u2", copy=False).tobytes())


def _require(fields: dict[str, Any], name: str, supported: str) -> None:
    if (given := fields.get(name)) != supported:
        raise ValueError(f"{name} must be {supported!r}, got {given!r}")


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(file: str, folder: str) -> int:
    """Convert, and return exit status 0, or 1 after writing one line about the error to standard error."""
    try:
        convert(Path(file), Path(folder))
    except Exception as error:  # the reader raises many types for unreadable files
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
