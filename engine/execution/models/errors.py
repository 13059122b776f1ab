"""What can be wrong with a model directory.

ModelError
|-- ModelConfigError    config.json asks for something this project does not compute, or lacks something it needs
`-- WeightsError        a weight file is missing, damaged, or does not fit config.json
"""

from __future__ import annotations

from typing import Any

from engine.errors import EngineError


class ModelError(EngineError):
    """A model cannot be loaded; the message says which file or key is to blame."""


class ModelConfigError(ModelError):
    """key: of config.json. value: what stands there."""

    def __init__(self, key: str, value: Any, reason: str) -> None:
        super().__init__(f"config.json: {key} = {value!r}: {reason}")
        self.key = key
        self.value = value


class WeightsError(ModelError):
    """A safetensors file or a tensor in it is missing, damaged or of the wrong shape."""
