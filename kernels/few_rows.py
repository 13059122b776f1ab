"""Matrices for few rows: with the norm before, the gate behind or the addition to the residual in the same kernel.

A step of a handful of rows computes next to nothing: it reads all weights once. So a layer is seven kernels here, not
ten, and each streams its matrix from its first instruction on: the root mean square is found beside the product and
divides it afterwards, and what follows a product is done while it is in registers. Rows are padded to the 16 of a
tensor core's product, whose operands are copied to shared memory several blocks ahead.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

FEW = 8  # rows up to which this is used
ROWS = 16  # of tl.dot
PROGRAMS = 250  # that keep a GPU's memory busy: about two for each multiprocessor of a Hopper chip


@dataclass(frozen=True)
class Tile:
    """How a matrix is walked: so many outputs and inputs at a time, `stages` of them under way at once."""

    outputs: int
    inputs: int  # in half precision; half as many in float32
    warps: int
    stages: int


# By outputs and inputs of a matrix, those of a gate and of what it gates counted once. Printed by
# `benchmarks/gpu_matrices.py`, and empty until that has run on a GPU.
TILES: dict[tuple[int, int], Tile] = {}


def tile_for(outputs: int, inputs: int, number_bytes: int) -> Tile:
    """That of TILES; for another matrix the widest one that leaves enough programs."""
    if (outputs, inputs) in TILES:
        tile = TILES[outputs, inputs]
    else:
        width = next((width for width in (64, 32) if outputs >= width * PROGRAMS), 16)
        tile = Tile(width, 128 if width == 64 else 256, 4, 4)
    return replace(tile, inputs=tile.inputs * 2 // number_bytes)


# What differs from batch to batch is not specialised on: its first odd value would compile anew while people wait.
@triton.jit(do_not_specialize=["M"])
def _few_rows_kernel(
    x,  # [M, K] any float, strided over M
    weight,  # [N, K], with GATED [2 N, K]: the gate, then what it gates
    bias,  # [N] or [2 N], read when HAS_BIAS
    norm,  # [K], read when NORM
    out,  # [M, N]; with ADD added to
    M,
    N,
    x_stride,
    eps,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """BLOCK_N outputs of all rows."""
    columns = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, ROWS)
    row_inside, column_inside = rows < M, columns < N
    total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    gated = tl.zeros([ROWS, BLOCK_N], tl.float32)
    squares = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        inside = inner < K
        left = tl.load(
            x + rows[:, None] * x_stride + inner[None, :], mask=row_inside[:, None] & inside[None, :], other=0.0
        )
        if NORM:
            wide = left.to(tl.float32)
            squares += wide * wide
            gain = tl.load(norm + inner, mask=inside, other=0.0).to(tl.float32)
            left = (wide * gain[None, :]).to(left.dtype)
        at = weight + columns[None, :] * K + inner[:, None]
        wanted = column_inside[None, :] & inside[:, None]
        right = tl.load(at, mask=wanted, other=0.0, eviction_policy="evict_first")
        total = tl.dot(left, right, total, input_precision=PRECISION)
        if GATED:
            other = tl.load(at + tl.cast(N, tl.int64) * K, mask=wanted, other=0.0, eviction_policy="evict_first")
            gated = tl.dot(left, other, gated, input_precision=PRECISION)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=1) / K + eps)
        total *= scale[:, None]
        gated *= scale[:, None]
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if HAS_BIAS:
            gated += tl.load(bias + N + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
        total = total * tl.sigmoid(total) * gated
    target = out + rows[:, None] * N + columns[None, :]
    kept = row_inside[:, None] & column_inside[None, :]
    if ADD:
        total += tl.load(target, mask=kept, other=0.0).to(tl.float32)
    tl.store(target, total.to(out.dtype.element_ty), mask=kept)


class DenseLinear:
    """y = x @ weight.T + bias, for x[T, K] -> [T, N], by the library's product or, of few rows, by the kernel here."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight[N, K], bias[N] or None; both are kept as they are."""
        self.weight = weight.contiguous()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] -> [T, N], same dtype as the weight."""
        return self.multiply_few(x) if self.takes_few(x) else F.linear(x, self.weight, self.bias)

    def takes_few(self, x: Tensor) -> bool:
        """Whether x[T, K] is for `multiply_few`. Not in float16: a row that is not divided yet may overflow there."""
        return x.shape[0] <= FEW and x.dtype in (torch.bfloat16, torch.float32)

    def multiply_few(self, x: Tensor, norm: Tensor | None = None, eps: float = 0.0, gated: bool = False) -> Tensor:
        """x[T, K], T up to 16 -> [T, N]; see `kernels.interface.Kernels.norm_linear` and `norm_gated_linear`, whose
        [T, N / 2] it is with `gated`."""
        outputs = self.weight.shape[0] // 2 if gated else self.weight.shape[0]
        out = torch.empty((x.shape[0], outputs), dtype=x.dtype, device=x.device)
        self._launch(x, norm, eps, out, gated, add=False)
        return out

    def add_to(self, x: Tensor, residual: Tensor) -> None:
        """x[T, K], residual[T, N] += x @ weight.T + bias; the product is not rounded before."""
        if self.takes_few(x):
            self.add_few(x, residual)
            return
        torch.addmm(residual, x, self.weight.T, out=residual)
        if self.bias is not None:
            residual += self.bias

    def add_few(self, x: Tensor, residual: Tensor) -> None:
        """`add_to` for T up to 16."""
        self._launch(x, None, 0.0, residual, gated=False, add=True)

    def _launch(self, x: Tensor, norm: Tensor | None, eps: float, out: Tensor, gated: bool, add: bool) -> None:
        assert x.shape[0] <= ROWS and x.stride(1) == 1 and out.is_contiguous()
        (rows, inputs), outputs = x.shape, out.shape[1]
        tile = tile_for(outputs, inputs, x.element_size())
        _few_rows_kernel[(triton.cdiv(outputs, tile.outputs),)](
            x,
            self.weight,
            self.bias,
            norm,
            out,
            rows,
            outputs,
            x.stride(0),
            eps,
            K=inputs,
            HAS_BIAS=self.bias is not None,
            NORM=norm is not None,
            GATED=gated,
            ADD=add,
            ROWS=ROWS,
            BLOCK_N=tile.outputs,
            BLOCK_K=tile.inputs,
            PRECISION="ieee",  # of float32 operands; half-precision ones are not affected
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
