"""Configuration of a Llama, Mistral, Qwen2 or Qwen3 model, read from a Hugging Face config.json.

An entry of config.json that would change the computation but is not supported here is an error, not a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.execution.models.errors import ModelConfigError

# Supported class names, and the family of each.
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# Sections in which multimodal models keep the configuration of their language model, as in transformers.
TEXT_SECTIONS = ("text_config", "decoder", "generator")
# Upper bounds of the sizes, an order of magnitude beyond any published model. Larger values are mistakes and are
# refused before memory is allocated.
MAX_SIZES = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 13,
}
# Keys that describe positions. Without rope_theta, transformers' default is used, as the first Llama models need it; a
# file without any of these keys is not complete.
POSITION_KEYS = (
    "rope_theta", "rope_parameters", "rope_scaling", "max_position_embeddings", "max_sequence_length",
)  # fmt: skip
DEFAULT_ROPE_THETA = 10000.0  # RotaryEmbeddingConfigMixin.default_theta of transformers, for all families
MAX_INTEGER = 2**31 - 1  # for other sizes
MAX_NUMBER = 1e12  # for rope parameters; beyond it float32 tables have no meaning
TEXT_LISTS = ("architectures", "layer_types")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: kind is default, linear, llama3 or yarn; unused numbers keep their defaults.

    attention_factor: multiplies cosines and sines (yarn); None: derived from factor and the mscales.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


@dataclass(frozen=True)
class DecoderConfig:
    """Parameters of a `Decoder`. windows: per layer, 0 for full attention."""

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
    rope: RopeConfig
    dtype: torch.dtype

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Return the configuration in `config`, the contents of config.json.

        Raises ModelConfigError with key and value.
        """
        for key in TEXT_LISTS:
            _check_text_list(config, key)
        family = _family(config)
        _refuse_unsupported(config)
        _check_positions(config)
        num_heads = _positive(config, "num_attention_heads")
        num_kv_heads = _num_kv_heads(config, family, num_heads)
        num_layers = _positive(config, "num_hidden_layers")
        attention_bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
        return cls(
            vocab_size=_positive(config, "vocab_size"),
            hidden_size=_positive(config, "hidden_size"),
            intermediate_size=_positive(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(config, family, num_heads),
            max_position=_max_position(config),
            norm_eps=_number(config, "rms_norm_eps", 1e-6),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias or family == "qwen2",
            out_bias=attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
            qk_norm=family == "qwen3",
            windows=_windows(config, family, num_layers),
            rope=rope_config(config),
            dtype=_dtype(config),
        )


def _family(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    for name in architectures or ():
        if name in FAMILIES:
            return FAMILIES[name]
    raise ModelConfigError("architectures", architectures, f"must contain one of {', '.join(FAMILIES)}")


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelConfigError("hidden_act", activation, "must be silu, the only supported activation")


def _check_positions(config: Mapping[str, Any]) -> None:
    if all(config.get(key) is None for key in POSITION_KEYS):
        missing = ", ".join(POSITION_KEYS[1:])
        raise ModelConfigError(
            "rope_theta",
            None,
            f"is missing, and so are {missing}, so the file describes no positions; "
            "compare it with that of the original model",
        )


def _check_text_list(config: Mapping[str, Any], key: str) -> None:
    value = config.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ModelConfigError(key, value, "must be a list of strings")


def _positive(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelConfigError(key, value, "must be a positive integer")
    if value > (largest := MAX_SIZES.get(key, MAX_INTEGER)):
        raise ModelConfigError(key, value, f"must be at most {largest}")
    return value


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_NUMBER:
        raise ModelConfigError(key, value, f"must be a positive number of at most {MAX_NUMBER:g}")
    return float(value)


def _num_kv_heads(config: Mapping[str, Any], family: str, num_heads: int) -> int:
    # Llama configurations from before grouped-query attention omit the key.
    key = "num_key_value_heads"
    count = num_heads if family == "llama" and config.get(key) is None else _positive(config, key)
    if num_heads % count:
        raise ModelConfigError(key, count, f"must divide num_attention_heads, which is {num_heads}")
    return count


def _head_dim(config: Mapping[str, Any], family: str, num_heads: int) -> int:
    if config.get("head_dim") is not None:
        head_dim = _positive(config, "head_dim")
    elif family == "qwen3":
        head_dim = 128
    else:
        hidden_size = _positive(config, "hidden_size")
        if hidden_size % num_heads:
            raise ModelConfigError(
                "hidden_size", hidden_size, f"must be a multiple of num_attention_heads, which is {num_heads}"
            )
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise ModelConfigError("head_dim", head_dim, "must be even for rotary embedding")
    return head_dim


def _windows(config: Mapping[str, Any], family: str, num_layers: int) -> tuple[int, ...]:
    """Return the sliding window of each layer, interpreted like the family's configuration class in transformers."""
    layer_types = config.get("layer_types")
    if family == "llama":
        return (0,) * num_layers
    if family == "mistral":
        if layer_types is not None:
            raise ModelConfigError("layer_types", layer_types, "is not part of a Mistral configuration")
        return (_window(config),) * num_layers
    window = _window(config) if config.get("use_sliding_window", False) else 0
    if layer_types is None:
        first_sliding = config.get("max_window_layers", 28)
        if not isinstance(first_sliding, int) or isinstance(first_sliding, bool) or first_sliding < 0:
            raise ModelConfigError("max_window_layers", first_sliding, "must be an integer of at least 0")
        return tuple(window if layer >= first_sliding else 0 for layer in range(num_layers))
    if len(layer_types) != num_layers or set(layer_types) - {"full_attention", "sliding_attention"}:
        raise ModelConfigError(
            "layer_types", layer_types, f"must have {num_layers} entries, each full_attention or sliding_attention"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)


def _window(config: Mapping[str, Any]) -> int:
    if config.get("sliding_window", 4096) is None:
        return 0
    return _positive(config, "sliding_window", 4096)


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    key = "dtype" if "dtype" in config else "torch_dtype"
    name = config.get(key) or "float32"
    if not isinstance(name, str) or name not in DTYPES:
        raise ModelConfigError(key, name, f"must be one of {', '.join(DTYPES)}")
    return DTYPES[name]


def text_sections(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the parts of config.json that describe the language model, each with the prefix of its keys.

    These are the top level, and the sections in which multimodal models keep it.
    """
    sections = [("", config)]
    for name in TEXT_SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping):
            sections.append((f"{name}.", section))
    return sections


def rope_entries(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return all descriptions of a rotary embedding with their keys.

    They may be at the top level, in a text section, or nested, one for each layer type. Raises ModelConfigError for two
    that contradict each other.
    """
    entries: list[tuple[str, Mapping[str, Any]]] = []
    for prefix, section in text_sections(config):
        key, given = _rope_entry(section)
        nested = {name: value for name, value in given.items() if isinstance(value, Mapping)}
        entries += [(f"{prefix}{key}.{name}", value) for name, value in nested.items()]
        if given.keys() - nested.keys():
            entries.append((f"{prefix}{key}", {name: value for name, value in given.items() if name not in nested}))
    return entries


def rope_kind(entry: Mapping[str, Any]) -> Any:
    """Return the type of an entry, from the new key or the old one."""
    return entry.get("rope_type", entry.get("type", "default"))


def _rope_entry(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the key and value of one section's description.

    Two that disagree, for example because one was added by hand, are an error: transformers silently drops parts of
    one.
    """
    found = {key: config[key] for key in ("rope_parameters", "rope_scaling") if config.get(key)}
    for key, value in found.items():
        if not isinstance(value, Mapping):
            raise ModelConfigError(key, value, "must be a JSON object")
    if len(found) == 2:
        new, old = found.values()
        is_nested = any(isinstance(value, Mapping) for value in (*new.values(), *old.values()))
        new_kind, old_kind = rope_kind(new), rope_kind(old)
        if is_nested or new_kind != old_kind or any(new[name] != old[name] for name in set(new) & set(old)):
            raise ModelConfigError("rope_scaling", old, f"contradicts rope_parameters = {new!r}; keep one of them")
    return next(iter(found.items()), ("rope_scaling", {}))


def rope_config(config: Mapping[str, Any]) -> RopeConfig:
    """Return the rotary embedding of rope_parameters (transformers 5) or of rope_theta and rope_scaling (before)."""
    entries = rope_entries(config) or [("rope_scaling", {})]
    key, given = entries[0]
    if len(entries) > 1 or "." in key:
        raise ModelConfigError(key, given, "must be one rotary embedding for all layers, at the top level")
    kind = rope_kind(given)
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ModelConfigError(key, given, f"rope type must be default, linear, llama3 or yarn, got {kind!r}")
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1.0):
        raise ModelConfigError("partial_rotary_factor", partial, "must be 1: only whole heads are rotated")
    theta = _number(given if "rope_theta" in given else config, "rope_theta", DEFAULT_ROPE_THETA)
    if kind == "default":
        return RopeConfig(theta)
    required = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
    for name in required[kind]:
        if given.get(name) is None:
            raise ModelConfigError(key, given, f"must contain {name}, which rope type {kind!r} requires")
    if theta == 1.0 and kind == "yarn":
        raise ModelConfigError("rope_theta", theta, "must differ from 1 for yarn")
    scaled = RopeConfig(
        theta=theta,
        kind=kind,
        factor=_rope_number(key, given, "factor", 1.0),
        original_max_position=_original_max_position(config, given),
        low_freq_factor=_rope_number(key, given, "low_freq_factor", 1.0),
        high_freq_factor=_rope_number(key, given, "high_freq_factor", 4.0),
        attention_factor=None
        if given.get("attention_factor") is None
        else _rope_number(key, given, "attention_factor", 1.0),
        beta_fast=_rope_number(key, given, "beta_fast", 32.0),
        beta_slow=_rope_number(key, given, "beta_slow", 1.0),
        mscale=_rope_number(key, given, "mscale", 0.0),
        mscale_all_dim=_rope_number(key, given, "mscale_all_dim", 0.0),
        truncate=bool(given.get("truncate", True)),
    )
    if kind == "llama3" and scaled.low_freq_factor >= scaled.high_freq_factor:
        raise ModelConfigError(key, given, "low_freq_factor must be less than high_freq_factor")
    return scaled


def _rope_number(key: str, rope: Mapping[str, Any], name: str, default: float) -> float:
    """Return the number `name` of a rope entry `key`; null and 0 mean the default, as in transformers."""
    value = rope.get(name)
    if value is None or value is False or value == 0:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-6 <= value <= MAX_NUMBER:
        raise ModelConfigError(f"{key}.{name}", value, f"must be a number between 1e-06 and {MAX_NUMBER:g}")
    return float(value)


def _original_max_position(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    """Return the context length before rope scaling; a top-level key has priority, as in transformers."""
    name = "original_max_position_embeddings"
    value = config.get(name, rope.get(name, config.get("max_position_embeddings", 2048)))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_INTEGER:
        raise ModelConfigError(name, value, f"must be a positive integer of at most {MAX_INTEGER}")
    return value


def _max_position(config: Mapping[str, Any]) -> int:
    """Return max_position_embeddings, or the length that yarn extends the context to, if that is more.

    Some checkpoints do not write the extended length into max_position_embeddings.
    """
    given = _positive(config, "max_position_embeddings", 2048)
    rope = rope_config(config)
    extended = max(given, int(rope.original_max_position * rope.factor)) if rope.kind == "yarn" else given
    if extended > MAX_INTEGER:
        raise ModelConfigError("rope_scaling.factor", rope.factor, f"must allow at most {MAX_INTEGER} positions")
    return extended
