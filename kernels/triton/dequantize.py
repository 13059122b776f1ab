"""Rows of quantised matrices as dense ones: for products of many rows, which torch multiplies, and for embeddings."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.load_weights import load_weights
from kernels.triton.packed_matrix import PackedMatrix

BLOCK_N, BLOCK_K = 16, 256
NUM_WARPS = 4
MAX_SCRATCH_WEIGHTS = 1 << 26  # 128 MiB in half precision; larger matrices are multiplied in pieces


# Values that change with the batch are not specialised: the first odd value would trigger a compilation while serving.
@triton.jit(do_not_specialize=["first", "count"])
def _dequantize_kernel(
    codes,  # this and the next four: planes of a matrix [N, K], see `load_weights`
    high_bits,
    scales,
    factors,
    zeros,
    ids,  # [count] int64, rows of the matrix; or None for the rows from `first` on
    out,  # [count, K]
    first,
    count,
    LAYOUT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_K weights of BLOCK_N rows."""
    places = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * BLOCK_K
    inside = places < count
    if ids is not None:
        rows = tl.load(ids + places, mask=inside, other=0)
    else:
        rows = first + places
    weights = load_weights(
        *(codes, high_bits, scales, factors, zeros, rows, inside, start),
        *(LAYOUT, 1, BLOCK_N, BLOCK_K, out.dtype.element_ty),
    )
    INPUTS: tl.constexpr = LAYOUT.inputs
    inner = start + tl.arange(0, BLOCK_K)
    target = out + places[None, :, None] * INPUTS + inner[None, None, :]
    tl.store(target, weights, mask=inside[None, :, None] & (inner < INPUTS)[None, None, :])


def dequantize_rows(matrix: PackedMatrix, first: int, out: Tensor) -> None:
    """Write the weights of the rows from `first` on to out[rows, K]."""
    _dequantize(matrix, None, first, out)


def look_up_rows(matrix: PackedMatrix, ids: Tensor, out: Tensor) -> None:
    """Write the weights of rows ids[T] int64 to out[T, K]."""
    _dequantize(matrix, ids, 0, out)


def _dequantize(matrix: PackedMatrix, ids: Tensor | None, first: int, out: Tensor) -> None:
    count, inputs = out.shape
    if count == 0:
        return
    _dequantize_kernel[(triton.cdiv(count, BLOCK_N), triton.cdiv(inputs, BLOCK_K))](
        **matrix.planes,
        ids=ids,
        out=out,
        first=first,
        count=count,
        LAYOUT=matrix.layout,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        num_warps=NUM_WARPS,
    )


@dataclass(slots=True)
class Scratch:
    """Memory for dense weights of one matrix, or of a piece of it, which all layers of a device and dtype share.

    It grows while matrices are packed. Steps are recorded later, so they always use the same address.
    """

    dtype: torch.dtype
    device: torch.device
    _memory: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._memory = torch.empty(0, dtype=self.dtype, device=self.device)

    @property
    def nbytes(self) -> int:
        """Return the bytes that are allocated."""
        return self._memory.nbytes

    def reserve(self, matrix: PackedMatrix) -> None:
        """Make room for the largest piece of a matrix."""
        outputs, inputs = matrix.shape
        weights = min(outputs, _piece_rows(inputs)) * inputs
        if weights > self._memory.numel():
            self._memory = torch.empty(0, dtype=self.dtype, device=self.device)  # freed before it is replaced
            self._memory = torch.empty(weights, dtype=self.dtype, device=self.device)

    def pieces(self, matrix: PackedMatrix) -> Iterator[tuple[int, int, Tensor]]:
        """Yield rows first..last-1 of a matrix and their weights [rows, K], valid until the next piece of any layer."""
        outputs, inputs = matrix.shape
        for first in range(0, outputs, _piece_rows(inputs)):
            last = min(first + _piece_rows(inputs), outputs)
            piece = self._memory[: (last - first) * inputs].view(last - first, inputs)
            dequantize_rows(matrix, first, piece)
            yield first, last, piece


def _piece_rows(inputs: int) -> int:
    """Return the rows of a piece."""
    return max(1, MAX_SCRATCH_WEIGHTS // inputs)
