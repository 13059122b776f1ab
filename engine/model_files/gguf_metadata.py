"""Typed access to the keys of a GGUF model that begin with the name of its architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.model_files.errors import ModelFileError, shown
from engine.model_files.gguf import GGUFModel


@dataclass(frozen=True, slots=True)
class Metadata:
    """Typed access to the keys of one model. Errors name the file, the key and the value."""

    model: GGUFModel
    architecture: str

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive integer of the architecture's keys; `default` if it is missing."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "must be a positive integer, the same for all layers")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number of the architecture's keys; `default` if it is missing."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(name, "must be a finite number")
        return float(value)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the architecture."""
        return self.model.metadata.get(f"{self.architecture}.{name}", default)

    def error(self, name: str, reason: str) -> ModelFileError:
        """Return an error about a key of the architecture."""
        key, value = f"{self.architecture}.{name}", self.get(name)
        given = "it is missing" if value is None else f"got {shown(value)}"
        return ModelFileError(self.model.file, f"key {key!r} {reason}, but {given}; convert the model again")
