"""Skinny matrix products (few rows), fused with the preceding norm, the SwiGLU gate or the residual addition.

A step of a handful of rows is bound by reading all weights once. A layer is therefore six kernels instead of nine, and
each streams its matrix from the first instruction: the root mean square is accumulated next to the product and divides
it afterwards, and the epilogue runs while the product is in registers. Outputs map to the 16 rows of a tensor-core
product and the batch to its 8 columns, or twice 8. Each warp of a program takes its own part of k, so no work or load
is duplicated; Triton copies operands to shared memory several blocks ahead. Programs prefetch their first weights
while the previous kernel ends (`kernels.triton.pdl`).
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.load_weights import load_weights
from kernels.triton.packed_matrix import PackedMatrix
from kernels.triton.pdl import PREFETCH_ALIGN_BYTES, fetch, pdl_options
from kernels.triton.tile_table import FOUND

MAX_ALWAYS_ROWS = 8  # up to this many rows the kernel is always used: the columns of a tensor-core product
MAX_ROWS = 16  # up to this many rows it is used for matrices with a matching tile in the table
MIN_WIDE_OUTPUTS = 1 << 15  # from this many outputs on, even large tiles give enough programs
MAX_PREFETCH_BYTES = 1 << 14  # that a program prefetches; more delays the weights that the previous kernel still reads


@dataclass(frozen=True)
class Tile:
    """Tile shape of a product: outputs and inputs per step, with `stages` - 1 steps in flight."""

    outputs: int
    inputs: int  # in half precision, over all warps; half as many in float32
    warps: int
    stages: int


# Of quantised weights, by bytes of an activation; not measured yet. In half precision a part has 128 inputs, so that
# every plane is copied asynchronously; in float32 fewer, because the gated kernel would spill registers.
QUANTIZED_TILES = {2: Tile(16, 512, 4, 4), 4: Tile(16, 128, 4, 4)}
TILES = {matrix: Tile(*tile) for matrix, tile in FOUND.items()}


def columns_for(rows: int) -> int:
    """Return the tensor-core columns used for `rows` rows, at most MAX_ROWS."""
    return MAX_ALWAYS_ROWS if rows <= MAX_ALWAYS_ROWS else MAX_ROWS


def tile_for(outputs: int, inputs: int, gated: bool, columns: int, number_bytes: int) -> Tile:
    """Return the tuned tile of TILES, else a default that fits two programs on a multiprocessor."""
    tile = TILES.get((outputs, inputs, gated, columns))
    if tile is None:
        tile = Tile(32 if outputs >= MIN_WIDE_OUTPUTS else 16, 512, 4, 3)
    return replace(tile, inputs=tile.inputs * 2 // number_bytes)


def prefetch_bytes(outputs: int, row: int, gated: bool) -> int:
    """Return the bytes of each output's weights to prefetch, a power of two; 0 if the weight rows are not aligned.

    outputs: outputs per program. row: bytes of an output's weights.
    """
    if row % PREFETCH_ALIGN_BYTES.value:
        return 0
    return 1 << (min(row, MAX_PREFETCH_BYTES // (2 * outputs if gated else outputs)).bit_length() - 1)


@triton.jit
def _fetch_weights(
    weight,  # [N, ROW]
    first,  # first output, int64
    N,
    ROW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BYTES: tl.constexpr,
    LANES: tl.constexpr,
):
    """Prefetch the first BYTES of the weights of BLOCK_N outputs, one lane per output."""
    LANES_PER_OUTPUT: tl.constexpr = LANES // BLOCK_N
    lanes = tl.arange(0, LANES)
    fetch(weight + tl.minimum(first + lanes // LANES_PER_OUTPUT, N - 1) * ROW, lanes % LANES_PER_OUTPUT == 0, BYTES)


# Values that change with the batch are not specialised: the first odd value would trigger a compilation while serving.
@triton.jit(do_not_specialize=["M"])
def _skinny_gemm_kernel(
    x,  # [M, K] any float, strided over M
    weight,  # [N, K], with GATED [2 N, K]: gate, then up projection; with LAYOUT its codes
    bias,  # [N] or [2 N], read when HAS_BIAS
    norm,  # [K], read when NORM
    out,  # [M, N], strided over M with LAYOUT; with ADD the product is added to it
    M,
    N,
    x_stride,
    eps,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # per part
    PARTS: tl.constexpr,  # one per warp
    PRECISION: tl.constexpr,
    USE_PDL: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,  # bytes to prefetch of each output's weights
    LAYOUT: tl.constexpr = None,  # of a quantised weight; its other planes follow, see `load_weights`
    OUT_STRIDE: tl.constexpr = None,
    high_bits=None,
    scales=None,
    factors=None,
    zeros=None,
):
    """Compute BLOCK_N outputs of all rows."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, BLOCK_M)
    row_inside, column_inside = rows < M, columns < N
    BLOCK: tl.constexpr = PARTS * BLOCK_K
    first_inner = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if PREFETCH_BYTES > 0:
            ROW: tl.constexpr = K if LAYOUT is None else LAYOUT.code_bytes
            _fetch_weights(weight, first, N, ROW, BLOCK_N, PREFETCH_BYTES, 32 * PARTS)
            if GATED:
                _fetch_weights(weight + tl.cast(N, tl.int64) * ROW, first, N, ROW, BLOCK_N, PREFETCH_BYTES, 32 * PARTS)
    if NORM:
        next_gain = tl.load(norm + first_inner, mask=first_inner < K, other=0.0)
    if USE_PDL:
        tl.extra.cuda.gdc_wait()
    if LAYOUT is None:
        target = out + rows[None, :] * N + columns[:, None]
    else:
        target = out + rows[None, :] * OUT_STRIDE + columns[:, None]
    store_mask = row_inside[None, :] & column_inside[:, None]
    if ADD:  # loaded early, so that it has arrived when the product is done
        residual = tl.load(target, mask=store_mask, other=0.0)
    total = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    gated = tl.zeros([PARTS, BLOCK_N, BLOCK_M], tl.float32)
    # The squares use separate loads, one block ahead: if the values were also a product's operand, Triton would copy
    # them to shared memory with bank conflicts.
    flat = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK_M, BLOCK], tl.float32)
    at_squares = x + rows[:, None] * x_stride + flat[None, :]
    if NORM:
        next_values = tl.load(at_squares, mask=row_inside[:, None] & (flat < K)[None, :], other=0.0)
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
            wide = next_values.to(tl.float32)
            squares += wide * wide
            ahead = start + BLOCK
            next_gain = tl.load(norm + ahead + first_inner, mask=ahead + first_inner < K, other=0.0)
            next_values = tl.load(at_squares + ahead, mask=row_inside[:, None] & (ahead + flat < K)[None, :], other=0.0)
        if LAYOUT is None:
            weights = weight + columns[None, :, None] * K + inner[:, None, :]
            weight_mask = column_inside[None, :, None] & inside[:, None, :]
            total = tl.dot(tl.load(weights, mask=weight_mask, other=0.0), right, total, input_precision=PRECISION)
            if GATED:
                other = tl.load(weights + tl.cast(N, tl.int64) * K, mask=weight_mask, other=0.0)
                gated = tl.dot(other, right, gated, input_precision=PRECISION)
        else:
            left = load_weights(
                *(weight, high_bits, scales, factors, zeros, columns, column_inside, start),
                *(LAYOUT, PARTS, BLOCK_N, BLOCK_K, right.dtype),
            )
            total = tl.dot(left, right, total, input_precision=PRECISION)
            if GATED:
                other = load_weights(
                    *(weight, high_bits, scales, factors, zeros, columns + N, column_inside, start),
                    *(LAYOUT, PARTS, BLOCK_N, BLOCK_K, right.dtype),
                )
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
        result += residual.to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=store_mask)


class DenseLinear:
    """Linear layer y = x @ weight.T + bias, x[T, K] -> [T, N]: this kernel for few rows, else torch's product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep weight[N, K] and bias[N] or None unchanged."""
        self.weight = weight.contiguous()
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N], in the dtype of the weight."""
        return self.multiply_skinny(x) if self.supports(x) else F.linear(x, self.weight, self.bias)

    def supports(self, x: Tensor, gated: bool = False) -> bool:
        """Return whether `multiply_skinny` should compute x[T, K].

        Not in float16, where a row not yet divided by its root mean square may overflow.
        """
        if x.shape[0] > MAX_ROWS or x.dtype not in (torch.bfloat16, torch.float32):
            return False
        outputs, inputs = self.weight.shape
        return x.shape[0] <= MAX_ALWAYS_ROWS or (outputs // (2 if gated else 1), inputs, gated, MAX_ROWS) in TILES

    def multiply_skinny(self, x: Tensor, norm: Tensor | None = None, eps: float = 0.0, gated: bool = False) -> Tensor:
        """Compute x[T, K] -> [T, N], or [T, N / 2] with `gated`, for T up to MAX_ROWS.

        See `norm_linear` and `norm_gated_linear` of `kernels.interface.Kernels`.
        """
        outputs = self.weight.shape[0] // 2 if gated else self.weight.shape[0]
        out = torch.empty((x.shape[0], outputs), dtype=x.dtype, device=x.device)
        self._launch(x, norm, eps, out, gated, add=False)
        return out

    def add_to(self, x: Tensor, residual: Tensor) -> None:
        """Add x[T, K] @ weight.T + bias to residual[T, N]; the product is not rounded before the addition."""
        if self.supports(x):
            self.add_skinny(x, residual)
            return
        torch.addmm(residual, x, self.weight.T, out=residual)
        if self.bias is not None:
            residual += self.bias

    def add_skinny(self, x: Tensor, residual: Tensor) -> None:
        """Compute `add_to` with this kernel, for T up to MAX_ROWS."""
        self._launch(x, None, 0.0, residual, gated=False, add=True)

    def _launch(self, x: Tensor, norm: Tensor | None, eps: float, out: Tensor, gated: bool, add: bool) -> None:
        assert out.is_contiguous()
        (rows, inputs), number_bytes = x.shape, x.element_size()
        tile = tile_for(out.shape[1], inputs, gated, columns_for(rows), number_bytes)
        row_bytes = inputs * number_bytes
        _launch(self.weight, row_bytes, tile, self.bias, x, norm, eps, out, gated, add)


def launch_quantized(
    matrix: PackedMatrix,
    bias: Tensor | None,
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    out: Tensor,
    gated: bool = False,
    add: bool = False,
) -> None:
    """Write the product of x[T, K] with a quantised matrix to out[T, N], strided over T, as `DenseLinear` does.

    T up to MAX_ROWS. gated: the matrix is a gate, then its projection, of N outputs each. add: add to `out`.
    """
    planes, layout, tile = dict(matrix.planes), matrix.layout, QUANTIZED_TILES[x.element_size()]
    options = {"LAYOUT": layout, "OUT_STRIDE": out.stride(0)}
    codes = planes.pop("codes")
    assert codes is not None and out.stride(1) == 1
    _launch(codes, layout.code_bytes, tile, bias, x, norm, eps, out, gated, add, **planes, **options)


def _launch(
    weight: Tensor,
    row_bytes: int,
    tile: Tile,
    bias: Tensor | None,
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    out: Tensor,
    gated: bool,
    add: bool,
    **quantized: Any,
) -> None:
    """Launch the kernel. row_bytes: of an output's weights. quantized: the other arguments of a quantised weight."""
    assert x.shape[0] <= MAX_ROWS and x.stride(1) == 1
    (rows, inputs), outputs = x.shape, out.shape[1]
    _skinny_gemm_kernel[(triton.cdiv(outputs, tile.outputs),)](
        x,
        weight,
        bias,
        norm,
        out,
        rows,
        outputs,
        x.stride(0),
        eps,
        K=inputs,
        HAS_BIAS=bias is not None,
        NORM=norm is not None,
        GATED=gated,
        ADD=add,
        BLOCK_M=columns_for(rows),
        BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs // tile.warps,
        PARTS=tile.warps,
        PRECISION="ieee",  # applies to float32 operands; half precision is not affected
        PREFETCH_BYTES=prefetch_bytes(tile.outputs, row_bytes, gated),
        **quantized,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl_options(x.device),
    )
