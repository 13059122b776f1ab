"""Small models of transformers, written to GGUF files as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import (
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from tests.engine.model_files.gguf_files import write_all

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 2.0**-17,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "beta_fast": 16.0,
}
FACTORS = [1.0, 1.5, 2.25, 4.0]
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": FACTORS,
    "long_factor": [2 * factor for factor in FACTORS],
    "rope_theta": 10000.0,
}
# Architecture in GGUF, and configuration.
MODELS: dict[str, tuple[str, PretrainedConfig]] = {
    "llama": ("llama", LlamaConfig(**SIZES)),
    "llama, tied": ("llama", LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama, biases": ("llama", LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama, large heads": ("llama", LlamaConfig(**SIZES, head_dim=16)),
    "llama 3": ("llama", LlamaConfig(**SIZES, head_dim=64, rope_parameters=LLAMA3)),
    "llama, linear": ("llama", LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})),
    "mistral": ("llama", MistralConfig(**SIZES, sliding_window=None)),
    "mistral, window": ("llama", MistralConfig(**SIZES, sliding_window=5)),
    "qwen2": ("qwen2", Qwen2Config(**SIZES)),
    "qwen2, yarn": ("qwen2", Qwen2Config(**SIZES, rope_parameters=YARN)),
    "qwen3": ("qwen3", Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
    "phi3": ("phi3", Phi3Config(**SIZES, sliding_window=5)),
    "phi3, part of a head": ("phi3", Phi3Config(**SIZES, partial_rotary_factor=0.5)),
    "phi3, long": ("phi3", Phi3Config(**SIZES, original_max_position_embeddings=16, rope_parameters=LONGROPE)),
    "granite": ("granite", GraniteConfig(**SIZES, attention_multiplier=0.25, embedding_multiplier=12.0,
                                         residual_multiplier=0.5, logits_scaling=8.0)),
    "smollm3": ("smollm3", SmolLM3Config(**SIZES)),
}  # fmt: skip
ARCHITECTURES = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "phi3": "PHI3", "granite": "GRANITE",
                 "smollm3": "SMOLLM3"}  # fmt: skip


def write_model(path: Path, architecture: str, config: PretrainedConfig, state: Mapping[str, torch.Tensor]) -> None:
    """Write a model with the keys and tensors of the converter's class for its architecture."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim != config.hidden_size // config.num_attention_heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    _add_rope(writer, config, head_dim)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURES[architecture]], config.num_hidden_layers)
    for name, values in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture in ("llama", "granite", "smollm3") and (".q_proj." in name or ".k_proj." in name):
            values = permuted(values, config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads)
        stem, _, kind = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", values.contiguous().numpy())
    write_all(writer)


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows in the order that llama.cpp's converter writes (LlamaModel.permute)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _add_rope(writer: gguf.GGUFWriter, config: PretrainedConfig, head_dim: int) -> None:
    rope = config.rope_parameters
    rotated = int(head_dim * (rope.get("partial_rotary_factor") or 1.0))
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(rope["rope_theta"])
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        case "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_factors(rope, rotated).numpy())
        case "longrope":
            writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
            for name in ("short", "long"):
                writer.add_tensor(f"rope_factors_{name}.weight", torch.tensor(rope[f"{name}_factor"]).numpy())


def llama3_factors(rope: Mapping[str, Any], rotated: int) -> torch.Tensor:
    """Return the factors on frequencies, by transformers' implementation."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=rotated, num_attention_heads=1, rope_parameters=dict(rope))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
    return plain / scaled
