"""Rotary embedding as config.json describes it: keys of transformers 4 and 5, at any place of a model's files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.execution.models.config_values import MAX_INTEGER, MAX_NUMBER, number, positive
from engine.execution.models.errors import ModelConfigError
from engine.execution.models.families import Family

# Sections in which multimodal models keep the configuration of their language model, as in transformers.
TEXT_SECTIONS = ("text_config", "decoder", "generator")
# Keys that describe positions. Without rope_theta, transformers' default is used, as the first Llama models need it; a
# file without any of these keys is not complete.
POSITION_KEYS = (
    "rope_theta", "rope_parameters", "rope_scaling", "max_position_embeddings", "max_sequence_length",
)  # fmt: skip
# Entries without which a kind cannot be computed.
REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: kind is default, linear, llama3, yarn or longrope; unused numbers keep their defaults.

    dim: number of a head's first dimensions that are rotated. attention_factor: multiplies cosines and sines (yarn,
    longrope); None: derived from factor and the mscales. divisors: of the frequencies (longrope), the long or the short
    ones of config.json.
    """

    dim: int
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
    divisors: tuple[float, ...] = ()
    is_long: bool = False


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


def rope_config(config: Mapping[str, Any], family: Family, head_dim: int, max_len: int | None = None) -> RopeConfig:
    """Return the rotary embedding of rope_parameters (transformers 5) or of rope_theta and rope_scaling (before).

    max_len: longest sequence that is served; None: that of the model. It chooses between the factors of longrope.
    """
    entries = rope_entries(config) or [("rope_scaling", {})]
    key, given = entries[0]
    if len(entries) > 1 or "." in key:
        raise ModelConfigError(key, given, "must be one rotary embedding for all layers, at the top level")
    name = rope_kind(given)
    if not isinstance(name, str) or name not in family.rope_kinds:
        *others, last = family.rope_kinds
        raise ModelConfigError(key, given, f"rope type must be {', '.join(others)} or {last}, got {name!r}")
    kind, dim = family.rope_kinds[name], _rotary_dim(config, family, given, head_dim)
    theta = number(given if "rope_theta" in given else config, "rope_theta", family.default_theta)
    for required in REQUIRED[kind]:
        if given.get(required) is None:
            raise ModelConfigError(key, given, f"must contain {required}, which rope type {name!r} requires")
    if kind == "default":
        return RopeConfig(dim, theta)
    if kind == "longrope":
        return _longrope(config, family, (key, given), RopeConfig(dim, theta, kind), max_len)
    if theta == 1.0 and kind == "yarn":
        raise ModelConfigError("rope_theta", theta, "must differ from 1 for yarn")
    scaled = RopeConfig(
        dim=dim,
        theta=theta,
        kind=kind,
        factor=_rope_number(key, given, "factor", 1.0),
        original_max_position=_original_max_position(config, family, given),
        low_freq_factor=_rope_number(key, given, "low_freq_factor", 1.0),
        high_freq_factor=_rope_number(key, given, "high_freq_factor", 4.0),
        attention_factor=_optional_number(key, given, "attention_factor"),
        beta_fast=_rope_number(key, given, "beta_fast", 32.0),
        beta_slow=_rope_number(key, given, "beta_slow", 1.0),
        mscale=_rope_number(key, given, "mscale", 0.0),
        mscale_all_dim=_rope_number(key, given, "mscale_all_dim", 0.0),
        truncate=bool(given.get("truncate", True)),
    )
    if kind == "llama3" and scaled.low_freq_factor >= scaled.high_freq_factor:
        raise ModelConfigError(key, given, "low_freq_factor must be less than high_freq_factor")
    return scaled


def _rotary_dim(config: Mapping[str, Any], family: Family, rope: Mapping[str, Any], head_dim: int) -> int:
    """Return the number of a head's dimensions that are rotated, rounded as in transformers."""
    key = "partial_rotary_factor"
    part = rope.get(key, config.get(key, 1.0))
    if part in (None, 1.0):
        return head_dim
    if not family.partial_rotary:
        raise ModelConfigError(key, part, "must be 1: only whole heads are rotated")
    if not isinstance(part, int | float) or isinstance(part, bool) or not 0 < part < 1:
        raise ModelConfigError(key, part, "must be a number above 0 and at most 1")
    dim = int(head_dim * part)
    if dim == 0 or dim % 2:
        raise ModelConfigError(
            key, part, f"must rotate an even number of the {head_dim} dimensions of a head, not {dim}"
        )
    return dim


def _longrope(
    config: Mapping[str, Any],
    family: Family,
    entry: tuple[str, Mapping[str, Any]],
    plain: RopeConfig,
    max_len: int | None,
) -> RopeConfig:
    """Return `plain` with the divisors of longrope, and with a factor on cosines and sines.

    transformers chooses by the longest sequence of a batch. Here one table serves all sequences, so that a text depends
    neither on its neighbours nor on the order in which it was computed.
    """
    key, given = entry
    positions = positive(config, "max_position_embeddings", family.default_max_position)
    original = _original_max_position(config, family, given)
    is_long = (max_len or positions) > original
    # By whether the long ones are used; both are checked.
    divisors = [_divisors(key, given, name, plain.dim // 2) for name in ("short_factor", "long_factor")]
    mscales = [_optional_number(key, given, name) for name in ("short_mscale", "long_mscale")]
    attention_factor = _optional_number(key, given, "attention_factor") or mscales[is_long]
    if attention_factor is None:
        factor = _rope_number(key, given, "factor", positions / original)
        if factor > 1 and original == 1:
            raise ModelConfigError("original_max_position_embeddings", original, "must be more than 1 for longrope")
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return replace(
        plain,
        original_max_position=original,
        attention_factor=attention_factor,
        divisors=divisors[is_long],
        is_long=is_long,
    )


def _divisors(key: str, rope: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    """Return the list `name` of a rope entry `key`, one number for each pair of rotated dimensions."""
    given = rope[name]
    if not isinstance(given, list) or len(given) != count:
        raise ModelConfigError(f"{key}.{name}", given, f"must be a list of {count} numbers")
    return tuple(_checked_number(f"{key}.{name}", value) for value in given)


def _optional_number(key: str, rope: Mapping[str, Any], name: str) -> float | None:
    """Return the number `name` of a rope entry `key`; None if it is missing or null, 1 if it is 0."""
    return None if rope.get(name) is None else _rope_number(key, rope, name, 1.0)


def _rope_number(key: str, rope: Mapping[str, Any], name: str, default: float) -> float:
    """Return the number `name` of a rope entry `key`; null and 0 mean the default, as in transformers."""
    value = rope.get(name)
    if value is None or value is False or value == 0:
        return default
    return _checked_number(f"{key}.{name}", value)


def _checked_number(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-6 <= value <= MAX_NUMBER:
        raise ModelConfigError(key, value, f"must be a number between 1e-06 and {MAX_NUMBER:g}")
    return float(value)


def _original_max_position(config: Mapping[str, Any], family: Family, rope: Mapping[str, Any]) -> int:
    """Return the context length before rope scaling; a top-level key has priority, as in transformers.

    So has the default of a family with that key.
    """
    name = "original_max_position_embeddings"
    otherwise = rope.get(name, config.get("max_position_embeddings", family.default_max_position))
    value = config.get(name, family.default_original_max_position or otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_INTEGER:
        raise ModelConfigError(name, value, f"must be a positive integer of at most {MAX_INTEGER}")
    return value


def max_position(config: Mapping[str, Any], family: Family, rope: RopeConfig) -> int:
    """Return max_position_embeddings, or the length that yarn extends the context to, if that is more.

    Some checkpoints do not write the extended length into max_position_embeddings.
    """
    given = positive(config, "max_position_embeddings", family.default_max_position)
    extended = max(given, int(rope.original_max_position * rope.factor)) if rope.kind == "yarn" else given
    if extended > MAX_INTEGER:
        raise ModelConfigError("rope_scaling.factor", rope.factor, f"must allow at most {MAX_INTEGER} positions")
    return extended
