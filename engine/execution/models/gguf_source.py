"""Tensors of a GGUF file as a weight source: quantised matrices stay as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.safetensors_files import check_magnitude
from engine.execution.models.sources import WeightSource
from engine.execution.models.tensor_table import Progress
from engine.model_files.errors import ModelFileError
from engine.model_files.gguf_config import gguf_config, gguf_weights, heads_in_halves
from engine.model_files.gguf_files import GGUFFiles
from engine.model_files.gguf_header import TensorInfo
from engine.model_files.gguf_tensors import (
    PLAIN_DTYPES,
    GGUFMatrix,
    dequantized,
    has_codes,
    in_halves,
    magnitude_bound,
    plain_tensor,
    quantized_matrix,
)
from kernels.quantization import QuantizedMatrix, QuantScheme, StoredMatrix, dequantize_into

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

    def stored(self, name: str) -> QuantizedMatrix | None:
        info = self._infos.get(name)
        if info is None or not has_codes(info):
            return None
        del self._infos[name]
        matrix = _checked(lambda: quantized_matrix(info, self._heads(name)))
        return _CheckedMatrix(matrix, self._check_rows)

    def read_into(self, name: str, out: Tensor) -> None:
        self.check(name, tuple(out.shape))
        if (matrix := self.stored(name)) is not None:
            dequantize_into(matrix, out)
            return
        info = self._infos[name]
        read = plain_tensor if info.type.name in PLAIN_DTYPES else dequantized
        values = _checked(lambda: read(info))
        del self._infos[name]
        self._check_rows(info, info.rows, values)
        heads = self._heads(name)
        out.copy_(values if heads is None else in_halves(values, heads))

    def finish(self, ignored: Callable[[str], bool]) -> None:
        unread = [info.name for name, info in self._infos.items() if not ignored(name)]
        if unread:
            some = ", ".join(unread[:5])
            raise WeightsError(f"{self._file}: {len(unread)} tensors are not part of this model: {some}")
        self._progress(self._total, self._total)

    def _check_rows(self, info: TensorInfo, rows: int, weights: StoredMatrix | Tensor) -> None:
        """Check the values of some rows of a tensor, and report that they are read."""
        check_magnitude(info.file, info.name, magnitude_bound(weights), self._max_magnitude)
        self._done += info.size // info.rows * rows
        self._progress(self._done, self._total)


@dataclass(frozen=True)
class _CheckedMatrix:
    """Matrix in a file whose rows are checked as they are read. Raises WeightsError."""

    matrix: GGUFMatrix
    check: Callable[[TensorInfo, int, StoredMatrix], None]

    @property
    def scheme(self) -> QuantScheme:
        return self.matrix.scheme

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def rows(self, first: int, last: int) -> StoredMatrix:
        rows = _checked(lambda: self.matrix.rows(first, last))
        self.check(self.matrix.info, last - first, rows)
        return rows


def _checked(read: Callable[[], Read]) -> Read:
    """Return what `read` returns. Raises `WeightsError` for a damaged file."""
    try:
        return read()
    except ModelFileError as error:
        raise WeightsError(str(error)) from error
