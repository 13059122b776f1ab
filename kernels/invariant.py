"""The Triton back end in which a row's bits do not depend on its batch: every sum has one order, written down.

What stands in the way elsewhere is the library's matrix product, which picks its tiles and splits by the number of
rows, and decode attention, which sums a context in another order than prefill attention does. Here both have one order
for all: slower, by what `benchmarks/gpu.py` measures (after He et al., "Defeating Nondeterminism in LLM Inference",
2025).
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import TritonKernels
from kernels.decoder import Linear
from kernels.plans import DecodePlan, DecodeTiles
from kernels.prefill_attention import attend_tiles

BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64
SPLIT = 1024  # values of k summed by themselves; a multiple of BLOCK_K
FILLED = 264  # programs from which on a GPU is busy: two for each multiprocessor of a Hopper chip
NUM_WARPS = 4
NUM_STAGES = 4


# What differs from batch to batch is not specialised on: its first odd value would compile anew while people wait.
@triton.jit(do_not_specialize=["M"])
def _linear_kernel(
    x,  # [M, K] any float, strided over M
    weight,  # [N, K]
    bias,  # [N], read when HAS_BIAS
    out,  # [M, N]; with ALONE [splits, M, N] float32: the sum of each split, without the bias
    M,
    N,
    K,
    x_stride,
    HAS_BIAS: tl.constexpr,
    ALONE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of the product: split by split in ascending order, or with ALONE one split."""
    columns = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    first, last = 0, K
    if ALONE:
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
    """Adds the splits in ascending order, then the bias: what a program that has all of them does."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = M * N  # a multiple of 16 where N is known to be one, whatever M: so loads stay wide
    inside = places < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(sums + tl.cast(split, tl.int64) * size + places, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + places % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, total.to(out.dtype.element_ty), mask=inside)


class InvariantLinear:
    """y = x @ weight.T + bias, for x[T, K] -> [T, N]; sums in float32.

    k is cut into splits of a fixed length. Where few rows would leave a GPU idle each split is a program of its own;
    the sums and their order are the same either way, so a row's bits are too.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight[N, K], bias[N] or None; both are kept as they are."""
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, K] -> [T, N], same dtype as x."""
        assert x.stride(1) == 1
        (rows, inputs), outputs = x.shape, self._weight.shape[0]
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(outputs, BLOCK_N), triton.cdiv(rows, BLOCK_M))
        splits = triton.cdiv(inputs, SPLIT)
        if splits == 1 or grid[0] * grid[1] >= FILLED:
            self._multiply(x, (*grid, 1), self._bias, out, alone=False)
            return out
        sums = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
        self._multiply(x, (*grid, splits), None, sums, alone=True)
        block = 1024
        _join_kernel[(triton.cdiv(rows * outputs, block),)](
            sums, self._bias, out, rows, outputs, splits, HAS_BIAS=self._bias is not None, BLOCK=block
        )
        return out

    def _multiply(self, x: Tensor, grid: tuple[int, int, int], bias: Tensor | None, out: Tensor, alone: bool) -> None:
        _linear_kernel[grid](
            x,
            self._weight,
            bias,
            out,
            x.shape[0],
            *self._weight.shape,
            x.stride(0),
            HAS_BIAS=bias is not None,
            ALONE=alone,
            SPLIT=SPLIT,
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_N,
            BLOCK_K=BLOCK_K,
            PRECISION="ieee",  # of float32 operands; half-precision ones are not affected
            num_warps=NUM_WARPS,
            num_stages=NUM_STAGES,
        )


class InvariantKernels(TritonKernels):
    """`kernels.interface.Kernels`, batch-invariant: the other operations of `TritonKernels` compute a row by itself."""

    @staticmethod
    def pack_linear(weight: Tensor, bias: Tensor | None) -> Linear:
        return InvariantLinear(weight, bias)

    def plan_decode(
        self, page_table: Tensor, context_lens: Tensor, query_heads: int, k_cache: Tensor, window: int
    ) -> DecodeTiles:
        rows = torch.arange(len(context_lens), dtype=torch.int32, device=context_lens.device)
        return DecodeTiles(torch.stack((rows, rows, context_lens.clamp(max=1), context_lens - 1), dim=1))

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int,
        plan: DecodePlan | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """As a chunk of one query for each row, so that a token computed again in a chunk has the same bits."""
        if not isinstance(plan, DecodeTiles):
            plan = self.plan_decode(page_table, context_lens, q.shape[1], k_cache, window)
        out = torch.empty_like(q) if out is None else out
        attend_tiles(q, k_cache, v_cache, page_table, plan.tiles, out, scale, window)
        return out
