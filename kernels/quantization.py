"""Quantised matrices: codes of 4 to 8 bits and the scales of their groups, exactly as a file stores them.

A weight is `scale * (code - offset)`, or `scale * code - minimum`, of its group of inputs. File readers of any format
make a `StoredMatrix`, without rounding; kernels pack it, and `dequantize` is the reference of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

CPU = torch.device("cpu")

PIECE_WEIGHTS = 1 << 20  # of the rows that are unpacked at a time; temporary tensors have some bytes a weight


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How a matrix is quantised.

    bits: of a code, 4 to 8. group: consecutive inputs that share a scale; 0: all of a row. shared: inputs that share a
    float scale, by which the integer scales of their groups are multiplied (K-quants of llama.cpp); 0: each group has a
    float scale. offset: number that is subtracted from every code; with has_zeros, each group has one instead. table:
    values of the codes, before the offset; empty: a code is its own value. is_float8: codes are float8_e4m3fn, not
    integers. scale_dtype: float16 or float32.
    """

    name: str  # as the file's format has it, such as Q4_K
    bits: int
    group: int
    shared: int = 0
    offset: int = 0
    table: tuple[int, ...] = ()
    scale_dtype: torch.dtype = torch.float16
    has_minimums: bool = False
    has_zeros: bool = False
    is_float8: bool = False


class QuantizedMatrix(Protocol):
    """Quantised matrix of N outputs and K inputs, whose rows are read or unpacked when they are asked for."""

    @property
    def scheme(self) -> QuantScheme: ...

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, K)."""

    def rows(self, first: int, last: int) -> StoredMatrix:
        """Return the rows first..last-1. Each row is asked for once."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Rows of a quantised matrix in memory: N outputs, K inputs, G groups in a row and S shared scales in a row.

    codes: uint8 [N, K], one code a byte. scales: [N, G], or [N, S] under integer scales. minimums: the same as
    `scales`, subtracted after scaling. group_scales: int8 [N, G], by which a shared scale is multiplied.
    group_minimums: uint8 [N, G], by which a shared minimum is. zeros: uint8 [N, G], offsets of codes. The planes are
    those of the scheme; raises ValueError otherwise.
    """

    scheme: QuantScheme
    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None
    group_scales: Tensor | None = None
    group_minimums: Tensor | None = None
    zeros: Tensor | None = None

    def __post_init__(self) -> None:
        scheme = self.scheme
        expected = {
            "minimums": scheme.has_minimums,
            "group_scales": scheme.shared > 0,
            "group_minimums": scheme.shared > 0 and scheme.has_minimums,
            "zeros": scheme.has_zeros,
        }
        wrong = [name for name, exists in expected.items() if (getattr(self, name) is not None) != exists]
        if wrong or self.scales.dtype != scheme.scale_dtype:
            raise ValueError(f"{', '.join(wrong) or self.scales.dtype} does not belong to scheme {scheme}")

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs."""
        outputs, inputs = self.codes.shape
        return outputs, inputs

    @property
    def group(self) -> int:
        """Return the number of inputs of a group."""
        return self.scheme.group or self.shape[1]

    def effective_scales(self) -> Tensor:
        """Return the scale of each group, float32 [N, G]. The product of a float16 and an int8 is exact."""
        return self._effective(self.scales, self.group_scales)

    def effective_minimums(self) -> Tensor | None:
        """Return the minimum of each group, float32 [N, G]; None: none."""
        return None if self.minimums is None else self._effective(self.minimums, self.group_minimums)

    def values(self) -> Tensor:
        """Return what scales multiply, [N, K]: int32 of codes, by way of the table, less their offsets; or floats."""
        if self.scheme.is_float8:
            return self.codes.view(torch.float8_e4m3fn).float()
        codes = self.codes.to(torch.int32)
        if self.scheme.table:
            codes = torch.tensor(self.scheme.table, dtype=torch.int32)[codes]
        if self.zeros is None:
            return codes - self.scheme.offset
        return codes - self.zeros.to(torch.int32).repeat_interleave(self.group, 1)[:, : codes.shape[1]]

    def dequantize(self) -> Tensor:
        """Return the weights, float32 [N, K]: each product rounded once, and the difference once."""
        weights = self.values() * self._spread(self.effective_scales())
        minimums = self.effective_minimums()
        return weights if minimums is None else weights - self._spread(minimums)

    def rows(self, first: int, last: int) -> StoredMatrix:
        """Return the rows first..last-1, in the same memory."""
        return StoredMatrix(self.scheme, **{name: plane[first:last] for name, plane in self.planes().items()})

    def planes(self) -> dict[str, Tensor]:
        """Return the tensors that are present, by field."""
        return {name: plane for name in PLANES if (plane := getattr(self, name)) is not None}

    def _effective(self, floats: Tensor, integers: Tensor | None) -> Tensor:
        if integers is None:
            return floats.float()
        shared = floats.float().repeat_interleave(self.scheme.shared // self.group, 1)[:, : integers.shape[1]]
        return shared * integers

    def _spread(self, groups: Tensor) -> Tensor:
        return groups.repeat_interleave(self.group, 1)[:, : self.shape[1]]


PLANES = tuple(field.name for field in fields(StoredMatrix) if field.name != "scheme")


@dataclass(frozen=True, slots=True)
class StackedMatrix:
    """Matrices of one scheme, stacked by outputs."""

    parts: Sequence[QuantizedMatrix]

    @property
    def scheme(self) -> QuantScheme:
        return self.parts[0].scheme

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def rows(self, first: int, last: int) -> StoredMatrix:
        """Return the rows first..last-1 of all parts that these are in."""
        found: list[StoredMatrix] = []
        begin = 0
        for part in self.parts:
            end = begin + part.shape[0]
            if first < end and last > begin:
                found.append(part.rows(max(first, begin) - begin, min(last, end) - begin))
            begin = end
        if len(found) == 1:
            return found[0]
        planes = [rows.planes() for rows in found]
        return StoredMatrix(self.scheme, **{name: torch.cat([of[name] for of in planes]) for name in planes[0]})


def row_ranges(shape: tuple[int, int], multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield ranges of about a million weights that cover all rows, each but the last a multiple of `multiple` rows."""
    outputs, inputs = shape
    step = max(1, PIECE_WEIGHTS // (inputs * multiple)) * multiple
    for first in range(0, outputs, step):
        yield first, min(first + step, outputs)


def dequantize_into(matrix: QuantizedMatrix, out: Tensor) -> None:
    """Write the weights of a matrix into out[N, K] of any dtype and device, some rows at a time."""
    for first, last in row_ranges(matrix.shape):
        out[first:last] = matrix.rows(first, last).dequantize()


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Weight of a layer in parts that are stacked by outputs, some of them quantised.

    dtype and device: of the layer's activations.
    """

    parts: Sequence[Tensor | QuantizedMatrix]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


LinearWeight = Tensor | StackedWeight


def dense_weight(weight: LinearWeight) -> Tensor:
    """Return a weight as one matrix. Stacked parts are converted to the dtype of the activations, on their device."""
    if isinstance(weight, Tensor):
        return weight
    dense = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    begin = 0
    for part in weight.parts:
        rows = dense[begin : begin + part.shape[0]]
        rows.copy_(part) if isinstance(part, Tensor) else dequantize_into(part, rows)
        begin += part.shape[0]
    return dense


def join_equal_schemes(matrices: Sequence[QuantizedMatrix]) -> list[QuantizedMatrix]:
    """Return stacked matrices, those of one scheme that follow each other as one."""
    runs: list[list[QuantizedMatrix]] = []
    for matrix in matrices:
        if runs and runs[-1][0].scheme == matrix.scheme:
            runs[-1].append(matrix)
        else:
            runs.append([matrix])
    return [run[0] if len(run) == 1 else StackedMatrix(run) for run in runs]
