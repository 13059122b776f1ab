"""Tensors of a GGUF file as a weight source: quantised matrices stay as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.safetensors_files import check_magnitude
from engine.execution.models.sources import Progress, WeightSource
from engine.model_files.errors import ModelFileError
from engine.model_files.gguf_config import gguf_config, gguf_weights, heads_in_halves
from engine.model_files.gguf_files import GGUFFiles
from engine.model_files.gguf_header import TensorInfo
from engine.model_files.gguf_tensors import (
    PLAIN_DTYPES,
    dequantized,
    has_codes,
    in_halves,
    magnitude_bound,
    matrix_in_halves,
    plain_tensor,
    stored_matrix,
)
from kernels.quantization import StoredMatrix

Read = TypeVar("Read")


class GGUFCheckpoint:
    """Tensors of a GGUF file and its shards."""

    def __init__(self, files: GGUFFiles) -> None:
        self._files = files

    def files(self) -> set[Path]:
        return {info.file for info in self._files.model.tensors.values()}

    def size(self) -> int:
        return sum(info.size for info in self._files.model.tensors.values())

    def source(self, progress: Progress, max_magnitude: float) -> WeightSource:
        return GGUFSource(self._files, progress, max_magnitude)


class GGUFSource:
    """Weights of a GGUF file. Scales and values are checked as they are read."""

    def __init__(self, files: GGUFFiles, progress: Progress, max_magnitude: float) -> None:
        """max_magnitude: larger values are refused."""
        model = files.model
        self._file = files.path
        config, self._infos = _checked(lambda: (gguf_config(model), gguf_weights(model)))
        self._heads: Callable[[str], int | None] = lambda name: heads_in_halves(model, name, config)
        self._max_magnitude = max_magnitude
        self._progress = progress
        self._done = 0
        self._total = sum(info.size for info in self._infos.values())

    def dtype(self, name: str) -> torch.dtype | None:
        """Return the dtype in which `read_into` has the values: that of plain tensors, else bfloat16."""
        info = self._infos.get(name)
        return None if info is None else PLAIN_DTYPES.get(info.type.name, torch.bfloat16)

    def differ(self, first: str, second: str, dtype: torch.dtype) -> bool:
        return False  # a file without a head of its own has tied embeddings

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        info = self._infos.get(name)
        if info is None:
            raise WeightsError(f"{self._file}: tensor {name} is missing, but the architecture requires it")
        if info.shape != shape:
            raise WeightsError(
                f"{info.file}: tensor {info.name} has shape {info.shape}, but the architecture requires {shape}"
            )

    def stored(self, name: str) -> StoredMatrix | None:
        info = self._infos.get(name)
        if info is None or not has_codes(info):
            return None
        matrix = _checked(lambda: stored_matrix(info))
        heads = self._heads(name)
        self._count(name, info, matrix)
        return matrix if heads is None else matrix_in_halves(matrix, heads)

    def read_into(self, name: str, out: Tensor) -> None:
        self.check(name, tuple(out.shape))
        if (matrix := self.stored(name)) is not None:
            matrix.dequantize_into(out)
            return
        info = self._infos[name]
        read = plain_tensor if info.type.name in PLAIN_DTYPES else dequantized
        values = _checked(lambda: read(info))
        heads = self._heads(name)
        self._count(name, info, values)
        out.copy_(values if heads is None else in_halves(values, heads))

    def finish(self, ignored: Callable[[str], bool]) -> None:
        unread = [info.name for name, info in self._infos.items() if not ignored(name)]
        if unread:
            some = ", ".join(unread[:5])
            raise WeightsError(f"{self._file}: {len(unread)} tensors are not part of this model: {some}")
        self._progress(self._total, self._total)

    def _count(self, name: str, info: TensorInfo, weights: StoredMatrix | Tensor) -> None:
        check_magnitude(info.file, info.name, magnitude_bound(weights), self._max_magnitude)
        del self._infos[name]
        self._done += info.size
        self._progress(self._done, self._total)


def _checked(read: Callable[[], Read]) -> Read:
    """Return what `read` returns. Raises `WeightsError` for a damaged file."""
    try:
        return read()
    except ModelFileError as error:
        raise WeightsError(str(error)) from error
