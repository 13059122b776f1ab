"""Rotary embedding as config.json describes it: keys of transformers 4 and 5, at any place of a model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.execution.models.config_values import MAX_INTEGER, MAX_NUMBER, number, positive
from engine.execution.models.errors import ModelConfigError

# Sections in which multimodal models keep the configuration of their language model, as in transformers.
TEXT_SECTIONS = ("text_config", "decoder", "generator")
# Keys that describe positions. Without rope_theta, transformers' default is used, as the first Llama models need it; a
# file without any of these keys is not complete.
POSITION_KEYS = (
    "rope_theta", "rope_parameters", "rope_scaling", "max_position_embeddings", "max_sequence_length",
)  # fmt: skip
DEFAULT_ROPE_THETA = 10000.0  # RotaryEmbeddingConfigMixin.default_theta of transformers, for all families


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


def check_positions(config: Mapping[str, Any]) -> None:
    """Raise ModelConfigError for a file without any key on positions."""
    if all(config.get(key) is None for key in POSITION_KEYS):
        missing = ", ".join(POSITION_KEYS[1:])
        raise ModelConfigError(
            "rope_theta",
            None,
            f"is missing, and so are {missing}, so the file describes no positions; "
            "compare it with that of the original model",
        )


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
    theta = number(given if "rope_theta" in given else config, "rope_theta", DEFAULT_ROPE_THETA)
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


def max_position(config: Mapping[str, Any]) -> int:
    """Return max_position_embeddings, or the length that yarn extends the context to, if that is more.

    Some checkpoints do not write the extended length into max_position_embeddings.
    """
    given = positive(config, "max_position_embeddings", 2048)
    rope = rope_config(config)
    extended = max(given, int(rope.original_max_position * rope.factor)) if rope.kind == "yarn" else given
    if extended > MAX_INTEGER:
        raise ModelConfigError("rope_scaling.factor", rope.factor, f"must allow at most {MAX_INTEGER} positions")
    return extended
