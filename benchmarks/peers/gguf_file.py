"""Convert a model folder of model.py to a bfloat16 GGUF file. Standalone script for llama-server's environment:

    python gguf_file.py MODEL_FOLDER OUT.gguf

It does not use llama.cpp's converter, which refuses tokenizers with unknown names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf  # type: ignore[import-not-found]  # installed only in that environment
import numpy as np

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
}


def bfloat16_bits(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield names and tensors of a safetensors file, bfloat16 as uint16: NumPy lacks it, and torch is not installed."""
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    begin = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    for name, entry in json.loads(raw[8:begin].tobytes()).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            yield name, raw[begin + first : begin + last].view(np.uint16).reshape(entry["shape"])


def renamed(name: str) -> str:
    """Translate a tensor name: model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight."""
    stem = name.removeprefix("model.").removesuffix(".weight")
    if not stem.startswith("layers."):
        return f"{NAMES[stem]}.weight"
    _, layer, part = stem.split(".", 2)
    return f"blk.{layer}.{NAMES[part]}.weight"


def interleaved(weight: Any, heads: int) -> Any:
    """Reorder the rows of each head from halves to pairs: llama.cpp's `llama` architecture rotates adjacent rows."""
    rows, inputs = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, inputs).swapaxes(1, 2).reshape(rows, inputs)


def write_settings(writer: gguf.GGUFWriter, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Write the header: shapes and vocabulary."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    vocabulary = tokenizer["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    words[-1] = words[0] + words[1]  # llama.cpp requires a merge, and its result must be a token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    writer.add_token_merges([f"{words[0]} {words[1]}"])  # prompts are never sent as text
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def main(folder: Path, out: Path) -> None:
    """Convert the model in `folder` and write `out`."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(out, config["model_type"])
    write_settings(writer, config, json.loads((folder / "tokenizer.json").read_text()))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, bits in bfloat16_bits(folder / "model.safetensors"):
        if bits.ndim == 1:  # norms are float32 in GGUF; bfloat16 is the upper half of a float32
            writer.add_tensor(renamed(name), (bits.astype(np.uint32) << 16).view(np.float32))
            continue
        part = name.split(".")[-2]
        if config["model_type"] == "llama" and part in heads:
            bits = interleaved(bits, heads[part])
        raw = np.ascontiguousarray(bits).view(np.uint8)
        writer.add_tensor(renamed(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
