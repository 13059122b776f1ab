"""Batch-invariant Triton back end: a row's bits do not depend on its batch, because every sum has a fixed order.

In `kernels.triton.backend` two operations are not invariant: torch's matrix product picks tiles and splits by the
number of rows, and decode attention sums a context in another order than prefill attention. Here both use one fixed
order (after He et al., "Defeating Nondeterminism in LLM Inference", 2025). It is slower; `benchmarks/gpu.py` measures
by how much.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.decoder import Linear
from kernels.paging import PagedKV
from kernels.plans import DecodePlan, DecodeTilePlan
from kernels.triton.backend import TritonKernels
from kernels.triton.prefill_attention import attend_tiles
from kernels.triton.quantized_linear import QuantizedLinear

BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64
SPLIT = 1024  # values of k per partial sum; a multiple of BLOCK_K
MIN_BUSY_PROGRAMS = 264  # programs that keep a GPU busy: two for each multiprocessor of a Hopper chip
NUM_WARPS = 4
NUM_STAGES = 4


# Values that change with the batch are not specialised: the first odd value would trigger a compilation while serving.
@triton.jit(do_not_specialize=["M"])
def _linear_kernel(
    x,  # [M, K] any float, strided over M
    weight,  # [N, K]
    bias,  # [N], read when HAS_BIAS
    out,  # [M, N]; with SINGLE_SPLIT [splits, M, N] float32, the sum of each split without bias
    M,
    N,
    K,
    x_stride,
    HAS_BIAS: tl.constexpr,
    SINGLE_SPLIT: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute one tile of the product: all splits in ascending order, or a single split with SINGLE_SPLIT."""
    columns = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    first, last = 0, K
    if SINGLE_SPLIT:
        first = tl.program_id(2) * SPLIT
        last = tl.minimum(first + SPLIT, K)
        out += tl.program_id(2).to(tl.int64) * M * N
    row_inside, column_inside = rows < M, columns < N
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(first, last, SPLIT):
        product = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(begin, tl.minimum(begin + SPLIT, last), BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            inside = inner < K
            left = tl.load(
                x + rows[:, None] * x_stride + inner[None, :], mask=row_inside[:, None] & inside[None, :], other=0.0
            )
            right = tl.load(
                weight + columns[None, :] * K + inner[:, None], mask=column_inside[None, :] & inside[:, None], other=0.0
            )
            product = tl.dot(left, right, product, input_precision=PRECISION)
        total += product
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    target = out + rows[:, None] * N + columns[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


@triton.jit(do_not_specialize=["M", "splits"])
def _join_kernel(
    sums,  # [splits, M, N] float32
    bias,  # [N], read when HAS_BIAS
    out,  # [M, N]
    M,
    N,
    splits,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the splits in ascending order, then the bias, exactly as a program that computes all splits does."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = M * N  # a multiple of 16 if N is known to be one, for any M, so loads stay wide
    inside = offsets < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(sums + tl.cast(split, tl.int64) * size + offsets, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + offsets % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=inside)


class InvariantLinear:
    """Linear layer y = x @ weight.T + bias, x[T, K] -> [T, N], with sums in float32.

    k is cut into splits of a fixed length. If few rows would leave the GPU idle, each split is its own program. The
    sums and their order are the same either way, and so are a row's bits.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep weight[N, K] and bias[N] or None unchanged."""
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N], in the dtype of x."""
        assert x.stride(1) == 1
        (rows, inputs), outputs = x.shape, self._weight.shape[0]
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(outputs, BLOCK_N), triton.cdiv(rows, BLOCK_M))
        splits = triton.cdiv(inputs, SPLIT)
        if splits == 1 or grid[0] * grid[1] >= MIN_BUSY_PROGRAMS:
            self._multiply(x, (*grid, 1), self._bias, out, single_split=False)
            return out
        sums = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
        self._multiply(x, (*grid, splits), None, sums, single_split=True)
        block = 1024
        _join_kernel[(triton.cdiv(rows * outputs, block),)](
            sums, self._bias, out, rows, outputs, splits, HAS_BIAS=self._bias is not None, BLOCK=block
        )
        return out

    def _multiply(
        self, x: Tensor, grid: tuple[int, int, int], bias: Tensor | None, out: Tensor, single_split: bool
    ) -> None:
        _linear_kernel[grid](
            x,
            self._weight,
            bias,
            out,
            x.shape[0],
            *self._weight.shape,
            x.stride(0),
            HAS_BIAS=bias is not None,
            SINGLE_SPLIT=single_split,
            SPLIT=SPLIT,
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_N,
            BLOCK_K=BLOCK_K,
            PRECISION="ieee",  # applies to float32 operands; half precision is not affected
            num_warps=NUM_WARPS,
            num_stages=NUM_STAGES,
        )


@dataclass(frozen=True)
class InvariantQuantizedLinear:
    """Linear layer of a quantised weight: each dense piece of it is multiplied as `InvariantLinear` does."""

    layer: QuantizedLinear

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x[T, K] -> [T, N], in the dtype of x."""
        bias = self.layer.bias
        products = [
            InvariantLinear(weight, None if bias is None else bias[columns])(x)
            for columns, weight in self.layer.dense_pieces()
        ]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)


class InvariantKernels(TritonKernels):
    """Batch-invariant `kernels.interface.Kernels`: overrides the operations of `TritonKernels` that mix rows."""

    @staticmethod
    def _multiply_dense(weight: Tensor, bias: Tensor | None) -> Linear:
        return InvariantLinear(weight, bias)

    @staticmethod
    def _multiply_quantized(layer: QuantizedLinear) -> Linear:
        return InvariantQuantizedLinear(layer)

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, kv: PagedKV, window: int
    ) -> DecodeTilePlan:
        rows = torch.arange(len(context_lens), dtype=torch.int32, device=context_lens.device)
        return DecodeTilePlan(torch.stack((rows, rows, context_lens.clamp(max=1), context_lens - 1), dim=1))

    def decode_attention(
        self,
        q: Tensor,
        kv: PagedKV,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute each row as a prefill chunk of one query: recomputing its token in a chunk gives equal bits."""
        if not isinstance(plan, DecodeTilePlan):
            plan = self.plan_decode(page_table, context_lens, q.shape[1], kv, window)
        out = torch.empty_like(q) if out is None else out
        attend_tiles(q, kv, page_table, plan.tiles, out, scale, window)
        return out
