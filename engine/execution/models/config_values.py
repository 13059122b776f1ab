"""Checked values of config.json. Errors name the key and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.execution.models.errors import ModelConfigError

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
MAX_INTEGER = 2**31 - 1  # for other sizes
MAX_NUMBER = 1e12  # for rope parameters; beyond it float32 tables have no meaning


def check_text_list(config: Mapping[str, Any], key: str) -> None:
    """Raise ModelConfigError unless the value of a key is missing or a list of strings."""
    value = config.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ModelConfigError(key, value, "must be a list of strings")


def positive(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a positive integer within MAX_SIZES; `default` if the key is missing."""
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelConfigError(key, value, "must be a positive integer")
    if value > (largest := MAX_SIZES.get(key, MAX_INTEGER)):
        raise ModelConfigError(key, value, f"must be at most {largest}")
    return value


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a positive number; `default` if the key is missing."""
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_NUMBER:
        raise ModelConfigError(key, value, f"must be a positive number of at most {MAX_NUMBER:g}")
    return float(value)
