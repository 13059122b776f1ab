"""Configuration of a decoder, read from a Hugging Face config.json by the description of its family.

An entry of config.json that would change the computation but is not supported here is an error, not a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.execution.models.config_values import check_text_list, number, positive
from engine.execution.models.errors import ModelConfigError
from engine.execution.models.families import Family, family_of
from engine.execution.models.rope_parameters import RopeConfig, check_positions, max_position, rope_config

TEXT_LISTS = ("architectures", "layer_types")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class DecoderConfig:
    """Parameters of a `Decoder`.

    windows: per layer, 0 for full attention. rotated: per layer, whether it has rotary embedding. scale: of attention
    scores. embedding_multiplier, residual_multiplier, logits_divisor: as in `kernels.decoder.DecoderShape`.
    qkv_names, gate_up_names: names of the projections in a checkpoint, one if they are one matrix.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    rotated: tuple[bool, ...]
    rope: RopeConfig
    scale: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float
    qkv_names: tuple[str, ...]
    gate_up_names: tuple[str, ...]
    dtype: torch.dtype

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], max_len: int | None = None) -> DecoderConfig:
        """Return the configuration in `config`, the contents of config.json.

        max_len: longest sequence that is served; None: that of the model. Raises ModelConfigError with key and value.
        """
        for key in TEXT_LISTS:
            check_text_list(config, key)
        family = family_of(config)
        _refuse_unsupported(config)
        check_positions(config)
        num_heads = positive(config, "num_attention_heads")
        num_kv_heads = _num_kv_heads(config, family, num_heads)
        num_layers = positive(config, "num_hidden_layers")
        head_dim = _head_dim(config, family, num_heads)
        rope = rope_config(config, family, head_dim, max_len)
        attention_bias = family.reads_attention_bias and bool(config.get("attention_bias", False))
        return cls(
            vocab_size=positive(config, "vocab_size"),
            hidden_size=positive(config, "hidden_size"),
            intermediate_size=positive(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_position=max_position(config, family, rope),
            norm_eps=number(config, "rms_norm_eps", family.default_norm_eps),
            tied_embeddings=bool(config.get("tie_word_embeddings", family.tied_by_default)),
            qkv_bias=attention_bias or family.always_qkv_bias,
            out_bias=attention_bias,
            mlp_bias=family.reads_mlp_bias and bool(config.get("mlp_bias", False)),
            qk_norm=family.qk_norm,
            windows=family.windows(config, num_layers),
            rotated=family.rotated(config, num_layers),
            rope=rope,
            scale=_multiplier(config, family, "attention_multiplier", head_dim**-0.5),
            embedding_multiplier=_multiplier(config, family, "embedding_multiplier", 1.0),
            residual_multiplier=_multiplier(config, family, "residual_multiplier", 1.0),
            logits_divisor=_multiplier(config, family, "logits_scaling", 1.0),
            qkv_names=family.qkv,
            gate_up_names=family.gate_up,
            dtype=_dtype(config),
        )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelConfigError("hidden_act", activation, "must be silu, the only supported activation")


def _num_kv_heads(config: Mapping[str, Any], family: Family, num_heads: int) -> int:
    key = "num_key_value_heads"
    count = num_heads if config.get(key) is None and not family.needs_kv_heads else positive(config, key)
    if num_heads % count:
        raise ModelConfigError(key, count, f"must divide num_attention_heads, which is {num_heads}")
    return count


def _head_dim(config: Mapping[str, Any], family: Family, num_heads: int) -> int:
    if config.get("head_dim") is not None:
        head_dim = positive(config, "head_dim")
    elif family.default_head_dim is not None:
        head_dim = family.default_head_dim
    else:
        hidden_size = positive(config, "hidden_size")
        if hidden_size % num_heads:
            raise ModelConfigError(
                "hidden_size", hidden_size, f"must be a multiple of num_attention_heads, which is {num_heads}"
            )
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise ModelConfigError("head_dim", head_dim, "must be even for rotary embedding")
    return head_dim


def _multiplier(config: Mapping[str, Any], family: Family, key: str, unread: float) -> float:
    """Return a multiplier, which is 1 if its key is missing, or `unread` for families without these keys."""
    return number(config, key, 1.0) if family.has_multipliers else unread


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    key = "dtype" if "dtype" in config else "torch_dtype"
    name = config.get(key) or "float32"
    if not isinstance(name, str) or name not in DTYPES:
        raise ModelConfigError(key, name, f"must be one of {', '.join(DTYPES)}")
    return DTYPES[name]
