"""Matrices for few rows: with the norm before, the gate behind or the addition to the residual in the same kernel.

A step of a handful of rows computes next to nothing: it reads all weights once. So a layer is six kernels here, not
nine, and each streams its matrix from its first instruction on: the root mean square is found beside the product and
divides it afterwards, and what follows a product is done while it is in registers. Outputs are the 16 rows of a tensor
core's product and the batch its 8 columns, or twice 8; the warps of a program each take a part of k, so that none does
or reads what another one does, and Triton copies their operands to shared memory several blocks ahead. While the kernel
before ends, programs fetch their first weights already (`kernels.early`).
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

from kernels.early import ALIGNED, early, fetch
from kernels.tile_table import FOUND

FEW = 8  # rows up to which this is always used: columns of a tensor core's product
MAX_ROWS = 16  # rows up to which it is used for matrices that have a tile for so many in the table
WIDE = 1 << 15  # outputs from which on programs are plenty, however many each has
FETCHED = 1 << 16  # bytes that a program fetches early: of all programs at once less than a second-level cache holds


@dataclass(frozen=True)
class Tile:
    """How a matrix is walked: so many outputs and inputs at a time, `stages` - 1 blocks of them under way at once."""

    outputs: int
    inputs: int  # in half precision, all warps together; half as many in float32
    warps: int
    stages: int


TILES = {matrix: Tile(*tile) for matrix, tile in FOUND.items()}


def columns_for(rows: int) -> int:
    """Return the columns of the products that take so many rows, up to MAX_ROWS."""
    return FEW if rows <= FEW else MAX_ROWS


def tile_for(outputs: int, inputs: int, gated: bool, columns: int, number_bytes: int) -> Tile:
    """That of TILES; for another matrix what leaves room for two programs on a multiprocessor."""
    tile = TILES.get((outputs, inputs, gated, columns))
    if tile is None:
        tile = Tile(32, 256, 4, 4) if outputs >= WIDE else Tile(16, 256, 4, 4 if gated else 6)
    return replace(tile, inputs=tile.inputs * 2 // number_bytes)


def fetched_early(outputs: int, inputs: int, gated: bool, number_bytes: int) -> int:
    """Bytes of each output's weights, a power of two, that a program with so many outputs fetches early; 0 where they
    do not all begin where such a fetch can."""
    row = inputs * number_bytes
    if row % ALIGNED.value:
        return 0
    return 1 << (min(row, FETCHED // (2 * outputs if gated else outputs)).bit_length() - 1)


@triton.jit
def _fetch_weights(
    weight,  # [N, K]
    first,  # of its outputs, int64
    N,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BYTES: tl.constexpr,
    LANES: tl.constexpr,
):
    """Asks for the first BYTES of the weights of BLOCK_N outputs, each by a lane of its own."""
    EACH: tl.constexpr = LANES // BLOCK_N
    lanes = tl.arange(0, LANES)
    fetch(weight + tl.minimum(first + lanes // EACH, N - 1) * K, lanes % EACH == 0, BYTES)


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
    FEW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # of one part
    PARTS: tl.constexpr,  # as many as warps
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
    FETCHED: tl.constexpr,  # bytes of each output's weights
):
    """BLOCK_N outputs of all rows."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, FEW)
    row_inside, column_inside = rows < M, columns < N
    BLOCK: tl.constexpr = PARTS * BLOCK_K
    first_inner = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        if FETCHED > 0:
            _fetch_weights(weight, first, N, K, BLOCK_N, FETCHED, 32 * PARTS)
            if GATED:
                _fetch_weights(weight + tl.cast(N, tl.int64) * K, first, N, K, BLOCK_N, FETCHED, 32 * PARTS)
    if NORM:
        next_gain = tl.load(norm + first_inner, mask=first_inner < K, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    target = out + rows[None, :] * N + columns[:, None]
    kept = row_inside[None, :] & column_inside[:, None]
    if ADD:  # asked for here, it is there when the product is
        before = tl.load(target, mask=kept, other=0.0)
    total = tl.zeros([PARTS, BLOCK_N, FEW], tl.float32)
    gated = tl.zeros([PARTS, BLOCK_N, FEW], tl.float32)
    # The squares have loads of their own, a block ahead: of numbers that are also an operand of a product, Triton would
    # make a copy in shared memory whose rows lie in the same banks.
    flat = tl.arange(0, BLOCK)
    squares = tl.zeros([FEW, BLOCK], tl.float32)
    at_squares = x + rows[:, None] * x_stride + flat[None, :]
    if NORM:
        next_ones = tl.load(at_squares, mask=row_inside[:, None] & (flat < K)[None, :], other=0.0)
    for start in range(0, K, BLOCK):
        inner = start + first_inner
        inside = inner < K
        right = tl.load(
            x + inner[:, :, None] + rows[None, None, :] * x_stride,
            mask=inside[:, :, None] & row_inside[None, None, :],
            other=0.0,
        )
        if NORM:
            right = (right.to(tl.float32) * next_gain.to(tl.float32)[:, :, None]).to(right.dtype)
            wide = next_ones.to(tl.float32)
            squares += wide * wide
            ahead = start + BLOCK
            next_gain = tl.load(norm + ahead + first_inner, mask=ahead + first_inner < K, other=0.0)
            next_ones = tl.load(at_squares + ahead, mask=row_inside[:, None] & (ahead + flat < K)[None, :], other=0.0)
        at = weight + columns[None, :, None] * K + inner[:, None, :]
        wanted = column_inside[None, :, None] & inside[:, None, :]
        total = tl.dot(tl.load(at, mask=wanted, other=0.0), right, total, input_precision=PRECISION)
        if GATED:
            other = tl.load(at + tl.cast(N, tl.int64) * K, mask=wanted, other=0.0)
            gated = tl.dot(other, right, gated, input_precision=PRECISION)
    result, factor = tl.sum(total, axis=0), tl.sum(gated, axis=0)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=1) / K + eps)
        result *= scale[None, :]
        factor *= scale[None, :]
    if HAS_BIAS:
        result += tl.load(bias + columns, mask=column_inside, other=0.0).to(tl.float32)[:, None]
    if GATED:
        if HAS_BIAS:
            factor += tl.load(bias + N + columns, mask=column_inside, other=0.0).to(tl.float32)[:, None]
        result = result * tl.sigmoid(result) * factor
    if ADD:
        result += before.to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=kept)


class DenseLinear:
    """y = x @ weight.T + bias, for x[T, K] -> [T, N], by the library's product or, of few rows, by the kernel here."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight[N, K], bias[N] or None; both are kept as they are."""
        self.weight = weight.contiguous()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] -> [T, N], same dtype as the weight."""
        return self.multiply_few(x) if self.takes_few(x) else F.linear(x, self.weight, self.bias)

    def takes_few(self, x: Tensor, gated: bool = False) -> bool:
        """Whether x[T, K] is for `multiply_few`. Not in float16: a row that is not divided yet may overflow there."""
        if x.shape[0] > MAX_ROWS or x.dtype not in (torch.bfloat16, torch.float32):
            return False
        outputs, inputs = self.weight.shape
        return x.shape[0] <= FEW or (outputs // (2 if gated else 1), inputs, gated, MAX_ROWS) in TILES

    def multiply_few(self, x: Tensor, norm: Tensor | None = None, eps: float = 0.0, gated: bool = False) -> Tensor:
        """Return x[T, K], T up to MAX_ROWS -> [T, N], with `gated` [T, N / 2]; see `norm_linear`, `norm_gated_linear`
        of `kernels.interface.Kernels`."""
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
        """`add_to` for T up to MAX_ROWS."""
        self._launch(x, None, 0.0, residual, gated=False, add=True)

    def _launch(self, x: Tensor, norm: Tensor | None, eps: float, out: Tensor, gated: bool, add: bool) -> None:
        assert x.shape[0] <= MAX_ROWS and x.stride(1) == 1 and out.is_contiguous()
        (rows, inputs), outputs = x.shape, out.shape[1]
        columns = columns_for(rows)
        tile = tile_for(outputs, inputs, gated, columns, x.element_size())
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
            FEW=columns,
            BLOCK_N=tile.outputs,
            BLOCK_K=tile.inputs // tile.warps,
            PARTS=tile.warps,
            PRECISION="ieee",  # of float32 operands; half-precision ones are not affected
            FETCHED=fetched_early(tile.outputs, inputs, gated, x.element_size()),
            num_warps=tile.warps,
            num_stages=tile.stages,
            **early(x.device),
        )
