"""Quantised matrices: codes of 4 to 8 bits and the scales of their groups, exactly as a file stores them.

A weight is `scale * (code - offset)`, or `scale * code - minimum`, of its group of inputs. File readers of any format
make a `StoredMatrix`, without rounding; kernels pack it, and `dequantize` is the reference of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PIECE_WEIGHTS = 1 << 20  # dequantised at a time


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How a matrix is quantised.

    bits: of a code, 4 to 8. group: consecutive inputs that share a scale; 0: all of a row. shared: inputs that share a
    float scale, by which the integer scales of their groups are multiplied (K-quants of llama.cpp); 0: each group has a
    float scale. offset: number that is subtracted from every code; `zeros` of a matrix have one for each group instead.
    table: values of the codes, before the offset; empty: a code is its own value.
    """

    name: str  # as the file's format has it, such as Q4_K
    bits: int
    group: int
    shared: int = 0
    offset: int = 0
    table: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Matrix of N outputs and K inputs, G groups in a row and S shared scales in a row.

    codes: uint8 [N, K], one code a byte. scales: float16 or float32 [N, G], or [N, S] under integer scales. minimums:
    the same as `scales`, subtracted after scaling; None: none. group_scales: int8 [N, G], by which a shared scale is
    multiplied. group_minimums: uint8 [N, G], by which a shared minimum is. zeros: uint8 [N, G], offsets of codes.
    """

    scheme: QuantScheme
    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None
    group_scales: Tensor | None = None
    group_minimums: Tensor | None = None
    zeros: Tensor | None = None

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
        """Return the integers that scales multiply, int32 [N, K]: codes, by way of the table, less their offsets."""
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

    def dequantize_into(self, out: Tensor) -> None:
        """Write the weights into out[N, K] of any dtype, some rows at a time."""
        step = max(1, PIECE_WEIGHTS // self.shape[1])
        for first in range(0, self.shape[0], step):
            out[first : first + step] = self._rows(first, first + step).dequantize()

    def _rows(self, first: int, last: int) -> StoredMatrix:
        planes = (self.codes, self.scales, self.minimums, self.group_scales, self.group_minimums, self.zeros)
        return StoredMatrix(self.scheme, *(None if plane is None else plane[first:last] for plane in planes))  # type: ignore[arg-type]

    def _effective(self, floats: Tensor, integers: Tensor | None) -> Tensor:
        if integers is None:
            return floats.float()
        shared = floats.float().repeat_interleave(self.scheme.shared // self.group, 1)[:, : integers.shape[1]]
        return shared * integers

    def _spread(self, groups: Tensor) -> Tensor:
        return groups.repeat_interleave(self.group, 1)[:, : self.shape[1]]


# Weight of a layer: a matrix, or several that are stacked by outputs.
LinearWeight = Tensor | Sequence[Tensor | StoredMatrix]


def dense_weight(weight: LinearWeight) -> Tensor:
    """Return a weight as one matrix. Stacked matrices are converted to float32."""
    if isinstance(weight, Tensor):
        return weight
    return torch.cat([part.float() if isinstance(part, Tensor) else part.dequantize() for part in weight])


def join_equal_schemes(matrices: Sequence[StoredMatrix]) -> list[StoredMatrix]:
    """Return stacked matrices, those of one scheme that follow each other as one."""
    joined: list[StoredMatrix] = []
    for matrix in matrices:
        if joined and joined[-1].scheme == matrix.scheme and joined[-1].scales.dtype == matrix.scales.dtype:
            joined[-1] = _stack(joined[-1], matrix)
        else:
            joined.append(matrix)
    return joined


def _stack(first: StoredMatrix, second: StoredMatrix) -> StoredMatrix:
    """Stack two matrices of one scheme by outputs."""

    def stacked(one: Tensor | None, other: Tensor | None) -> Tensor | None:
        return None if one is None or other is None else torch.cat((one, other))

    return StoredMatrix(
        first.scheme,
        torch.cat((first.codes, second.codes)),
        torch.cat((first.scales, second.scales)),
        stacked(first.minimums, second.minimums),
        stacked(first.group_scales, second.group_scales),
        stacked(first.group_minimums, second.group_minimums),
        stacked(first.zeros, second.zeros),
    )
