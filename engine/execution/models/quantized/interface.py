"""Parts that formats share: matrices in files, and checks of the tensors that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from engine.execution.models.errors import WeightsError
from engine.execution.models.safetensors_files import TensorEntry, check_magnitude
from engine.execution.models.tensor_table import TensorTable
from kernels.quantization import QuantScheme, StoredMatrix, row_ranges

SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """Quantised matrix with its scales in memory. Its codes are read, or unpacked, when rows are asked for.

    scales: [N, G]. zeros: uint8 [N, G], if the scheme has zero points. codes: returns those of the rows first..last-1.
    """

    scheme: QuantScheme
    shape: tuple[int, int]
    scales: Tensor
    zeros: Tensor | None
    codes: Callable[[int, int], Tensor]

    def rows(self, first: int, last: int) -> StoredMatrix:
        """Return the rows first..last-1."""
        zeros = None if self.zeros is None else self.zeros[first:last]
        return StoredMatrix(self.scheme, self.codes(first, last), self.scales[first:last], zeros=zeros)


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Matrix of a layout that no kernel multiplies, which is dequantised.

    reason: completes "matrices ..." in the log. values: returns the rows first..last-1 in float32.
    """

    shape: tuple[int, int]
    reason: str
    values: Callable[[int, int], Tensor]

    def write(self, out: Tensor) -> None:
        """Write the weights into out[N, K] of any dtype, some rows at a time."""
        for first, last in row_ranges(self.shape):
            out[first:last] = self.values(first, last)


class ColumnWords:
    """Words of a tensor [K, ...] with outputs as columns, which is therefore read as a whole, at the first use."""

    def __init__(self, tensors: TensorTable, name: str) -> None:
        self._tensors = tensors
        self._entry = tensors.take(name)

    @cached_property
    def words(self) -> Tensor:
        words = torch.empty(self._entry.shape, dtype=self._entry.dtype)
        self._entry.read_into(words)
        self._tensors.count(self._entry.size)
        return words


@dataclass(frozen=True, slots=True)
class Layer:
    """Quantised matrix, described by the headers of its tensors, which were checked.

    open: reads all but the codes, and takes all tensors from the table.
    """

    shape: tuple[int, int]
    open: Callable[[], CodedMatrix | DenseMatrix]


class Format(Protocol):
    """Format of quantised matrices, with the settings of one checkpoint."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return lines for the log about entries that are not used."""

    def layer(self, tensors: TensorTable, module: str) -> Layer | None:
        """Return the matrix of a module; None if it is not quantised. Raises WeightsError if its tensors do not fit."""


def num_groups(inputs: int, group: int) -> int:
    """Return the number of groups of a row. group: 0 for all of the row."""
    return -(-inputs // group) if group else 1


def require(tensors: TensorTable, name: str, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...]) -> TensorEntry:
    """Return the location of a tensor. Raises WeightsError if it is missing, or has another dtype or shape.

    shapes: those that are allowed; none: any.
    """
    entry = tensors.require(name, "quantization_config requires it; fetch the model again")
    if entry.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        given = str(entry.dtype).removeprefix("torch.")
        raise WeightsError(f"{entry.file}: tensor {name} has dtype {given}, but quantization_config requires {allowed}")
    if shapes and entry.shape not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise WeightsError(
            f"{entry.file}: tensor {name} has shape {entry.shape}, but quantization_config requires {allowed}"
        )
    return entry


def require_matrix(tensors: TensorTable, name: str, dtypes: tuple[torch.dtype, ...]) -> TensorEntry:
    """Return the location of a matrix of any shape. Raises WeightsError as `require`."""
    entry = require(tensors, name, dtypes)
    if len(entry.shape) != 2 or 0 in entry.shape:
        raise WeightsError(f"{entry.file}: tensor {name} has shape {entry.shape}, but must be a matrix")
    return entry


def read_scales(tensors: TensorTable, name: str, largest: int) -> Tensor:
    """Read scales of codes of at most the magnitude `largest`. Those in bfloat16 are returned in float32, exactly.

    Raises WeightsError for NaN, infinity, or implausible weights.
    """
    entry = tensors.require(name)
    scales = tensors.read(name)
    check_magnitude(entry.file, name, float(scales.float().abs().amax()) * largest, tensors.max_magnitude)
    return scales.float() if scales.dtype == torch.bfloat16 else scales


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """Return the fields of int32 [R, W], the lowest first: uint8 [R, W x 32 / bits]. bits: 4 or 8."""
    # Flat, because a column of one word may be contiguous and still have another stride than one.
    packed = words.contiguous().reshape(-1).view(torch.uint8).view(len(words), -1)
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), -1).view(len(packed), -1)


def coded_matrix(
    name: str, bits: int, group: int, shape: tuple[int, int], scales: Tensor, zeros: Tensor | None,
    codes: Callable[[int, int], Tensor],
) -> CodedMatrix:  # fmt: skip
    """Return a matrix of unsigned codes. zeros: None for the middle of the codes.

    If all zero points are the middle, they become the scheme's offset, which takes no memory and less time.
    """
    middle = 1 << (bits - 1)
    if zeros is not None and bool((zeros == middle).all()):
        zeros = None
    offset = middle if zeros is None else 0
    scheme = QuantScheme(name, bits, group, offset=offset, scale_dtype=scales.dtype, has_zeros=zeros is not None)
    return CodedMatrix(scheme, shape, scales.contiguous(), None if zeros is None else zeros.contiguous(), codes)
