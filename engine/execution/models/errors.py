"""Errors of a model directory.

ModelError
|-- ModelConfigError    config.json requires an unsupported feature, or lacks a required entry
`-- WeightsError        a weight file is missing, damaged, or does not fit config.json
"""

from __future__ import annotations

from typing import Any

from engine.errors import EngineError


class ModelError(EngineError):
    """A model cannot be loaded; the message names the file or key that is the cause."""


class ModelConfigError(ModelError):
    """An entry of config.json is missing, invalid or unsupported. key: its name. value: its value."""

    def __init__(self, key: str, value: Any, reason: str) -> None:
        super().__init__(f"config.json: {key} = {value!r}: {reason}")
        self.key = key
        self.value = value


class WeightsError(ModelError):
    """A safetensors file or a tensor in it is missing, damaged or of the wrong shape."""
