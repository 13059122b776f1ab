"""Tensors of a model's files, in the form that loading needs: the files to verify, their size, and a weight source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.execution.models.gguf_source import GGUFCheckpoint
from engine.execution.models.quantized.interface import Format
from engine.execution.models.quantized.registry import find_format
from engine.execution.models.quantized.source import QuantizedSource
from engine.execution.models.safetensors_files import list_tensors
from engine.execution.models.sources import CheckpointSource, WeightSource
from engine.execution.models.tensor_table import Progress, TensorTable
from engine.model_files.gguf_files import GGUFFiles
from engine.model_files.interface import ModelFiles


class Checkpoint(Protocol):
    """Stored weights of one model. Methods raise `WeightsError`, with the file, for a missing or damaged one."""

    def files(self) -> set[Path]:
        """Return the files with weights."""

    def size(self) -> int:
        """Return the bytes of all tensors."""

    def source(self, progress: Progress, max_magnitude: float) -> WeightSource:
        """Return a reader of the tensors that refuses NaN, infinity and values beyond `max_magnitude`.

        progress: called with (bytes done, bytes in total).
        """


@dataclass(frozen=True)
class SafetensorsCheckpoint:
    """Safetensors files of a folder."""

    folder: Path
    format: Format | None  # of quantised matrices

    def files(self) -> set[Path]:
        return {entry.file for entry in list_tensors(self.folder).values()}

    def size(self) -> int:
        return sum(entry.size for entry in list_tensors(self.folder).values())

    def source(self, progress: Progress, max_magnitude: float) -> WeightSource:
        tensors = TensorTable(self.folder, progress, max_magnitude)
        return CheckpointSource(tensors) if self.format is None else QuantizedSource(tensors, self.format)


def open_checkpoint(files: ModelFiles, config: Mapping[str, Any]) -> Checkpoint:
    """Return the tensors of a model: a GGUF file, or the safetensors files of a folder. Nothing is read yet.

    config: content of config.json. Raises ModelConfigError if it describes a quantisation that is not supported.
    """
    if isinstance(files, GGUFFiles):
        return GGUFCheckpoint(files)
    return SafetensorsCheckpoint(files.path, find_format(config))
