"""Task list of decode attention: the splits of all contexts of a step, listed on the device, where the lengths are.

A context is cut into splits of a fixed size from position 0. The size is small for few rows with short contexts, so
that the whole GPU takes part. It depends on nothing else in the batch, and neither does a row's summation order.

Splits are listed once for all layers (FlashInfer plans on the host: Ye et al., MLSys'25). A grid over every possible
split of the longest context would consist mostly of idle programs.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paging import PagedKV
from kernels.plans import SplitDecodePlan
from kernels.triton.skinny_gemm import MAX_ALWAYS_ROWS

BLOCK = 64  # positions per product
SPLIT_POSITIONS = 256  # positions; a multiple of BLOCK
SMALL_SPLIT = 64  # positions; used for up to `kernels.triton.skinny_gemm.MAX_ALWAYS_ROWS` rows and contexts up to LONG
LONG = 4096  # positions
LIST_BLOCK = 256  # rows, splits of a row, or heads processed at a time


@triton.jit
def read_task(
    tasks,  # [5, max_tasks] int32
    at,
    count,
    max_tasks,
):
    """Return row, split, first visible position, context and split size of a task; context 0 past the last task."""
    valid = at < count
    row = tl.load(tasks + at, mask=valid, other=0).to(tl.int64)
    split = tl.load(tasks + max_tasks + at, mask=valid, other=0)
    first = tl.load(tasks + 2 * max_tasks + at, mask=valid, other=0)
    context = tl.load(tasks + 3 * max_tasks + at, mask=valid, other=0)
    return row, split, first, context, tl.load(tasks + 4 * max_tasks + at, mask=valid, other=1)


@triton.jit
def _seen_from(
    context,  # int32, any shape
    window,
    split_size,  # positions, for contexts up to LONG
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,  # positions, for longer contexts
):
    """Return the first visible position and the split size."""
    first = tl.where(window > 0, tl.maximum(context - window, 0), 0)
    return first, tl.where(context > LONG, SPLIT, split_size)


# Values that change with the batch are not specialised: the first odd value would trigger a compilation while serving.
@triton.jit(do_not_specialize=["rows", "max_tasks", "split_size"])
def _list_kernel(
    context_lens,  # [B] int32
    tasks,  # [5, max_tasks] int32
    num_tasks,  # [1] int32
    arrived,  # [B, Hkv] int32
    rows,  # B
    max_tasks,
    window,
    split_size,
    KV_HEADS: tl.constexpr,
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,  # rows, splits and heads at a time
):
    """List the splits of one row after those of all previous rows, and reset its counters of reduced splits."""
    row = tl.program_id(0)
    for start in range(0, KV_HEADS, BLOCK):
        heads = start + tl.arange(0, BLOCK)
        tl.store(arrived + row * KV_HEADS + heads, 0, mask=heads < KV_HEADS)
    context = tl.load(context_lens + row)
    first, size = _seen_from(context, window, split_size, LONG, SPLIT)
    first_split, end_split = first // size, tl.cdiv(context, size)
    counted = tl.zeros([BLOCK], tl.int32)
    for start in range(0, row, BLOCK):
        others = start + tl.arange(0, BLOCK)
        lengths = tl.load(context_lens + others, mask=others < row, other=0)
        starts, sizes = _seen_from(lengths, window, split_size, LONG, SPLIT)
        counted += tl.cdiv(lengths, sizes) - starts // sizes
    before = tl.sum(counted)
    for start in range(first_split, end_split, BLOCK):
        splits = start + tl.arange(0, BLOCK)
        at = tasks + before + splits - first_split
        valid = splits < end_split
        tl.store(at, row, mask=valid)
        tl.store(at + max_tasks, splits, mask=valid)
        tl.store(at + 2 * max_tasks, first, mask=valid)
        tl.store(at + 3 * max_tasks, context, mask=valid)
        tl.store(at + 4 * max_tasks, size, mask=valid)
    if row == rows - 1:
        tl.store(num_tasks, before + end_split - first_split)


def plan_decode(page_table: Tensor, context_lens: Tensor, kv: PagedKV, window: int) -> SplitDecodePlan:
    """Return the tasks of a step for all layers of one window: page_table[B, P] int32, context_lens[B] int32."""
    B, device = len(context_lens), context_lens.device
    # The bound comes from the table's width, because the lengths are on the device.
    max_context = page_table.shape[1] * kv.page_size
    split_size = SMALL_SPLIT if B <= MAX_ALWAYS_ROWS else SPLIT_POSITIONS
    splits = max(1, triton.cdiv(min(max_context, LONG), split_size), triton.cdiv(max_context, SPLIT_POSITIONS))
    tasks = torch.empty((5, B * splits), dtype=torch.int32, device=device)
    num_tasks = torch.empty(1, dtype=torch.int32, device=device)
    arrived = torch.empty((B, kv.heads), dtype=torch.int32, device=device)
    _list_kernel[(B,)](
        context_lens,
        tasks,
        num_tasks,
        arrived,
        B,
        B * splits,
        window,
        split_size,
        KV_HEADS=kv.heads,
        LONG=LONG,
        SPLIT=SPLIT_POSITIONS,
        BLOCK=LIST_BLOCK,
        num_warps=1,
    )
    return SplitDecodePlan(tasks, num_tasks, arrived, splits, has_blocks=split_size > BLOCK or max_context > LONG)
