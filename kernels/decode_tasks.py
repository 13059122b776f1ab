"""What decode attention has to do in a step: the splits of all contexts, listed on the device, where their lengths are.

A context is cut into splits of a fixed size from position 0. The size is small where rows are few and their contexts
not long, so that all of a GPU reads them. It depends on nothing else of the batch, so neither does the order in which a
row's numbers are added.

They are listed once for all layers (FlashInfer plans on the host: Ye et al., MLSys'25): a grid with a place for every
split of the longest context would be mostly programs with nothing to do.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.few_rows import FEW
from kernels.plans import DecodeTasks

BLOCK = 64  # positions of one product
SPLIT = 256  # positions; a multiple of BLOCK
SPLIT_OF_FEW = 64  # likewise, where rows are as few as `kernels.few_rows` takes and contexts not longer than LONG
LONG = 4096
LISTED = 256  # rows, splits of a row, or heads, at a time


@triton.jit
def read_task(
    tasks,  # [5, room] int32
    at,
    count,
    room,
):
    """Row, split, first position that is seen, context and size of a split; behind the last one no context."""
    known = at < count
    row = tl.load(tasks + at, mask=known, other=0).to(tl.int64)
    split = tl.load(tasks + room + at, mask=known, other=0)
    first = tl.load(tasks + 2 * room + at, mask=known, other=0)
    context = tl.load(tasks + 3 * room + at, mask=known, other=0)
    return row, split, first, context, tl.load(tasks + 4 * room + at, mask=known, other=1)


@triton.jit
def _seen_from(
    context,  # int32, any shape
    window,
    split_size,  # positions, of contexts up to LONG
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,  # positions, of longer ones
):
    """The first position that is seen, and the size of a split."""
    first = tl.where(window > 0, tl.maximum(context - window, 0), 0)
    return first, tl.where(context > LONG, SPLIT, split_size)


# What differs from batch to batch is not specialised on: its first odd value would compile anew while people wait.
@triton.jit(do_not_specialize=["rows", "room", "split_size"])
def _list_kernel(
    context_lens,  # [B] int32
    tasks,  # [5, room] int32
    num_tasks,  # [1] int32
    arrived,  # [B, Hkv] int32
    rows,  # B
    room,
    window,
    split_size,
    KV_HEADS: tl.constexpr,
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,  # rows, splits and heads at a time
):
    """Lists the splits of one row, behind those of all before it; none of them is reduced yet."""
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
        known = splits < end_split
        tl.store(at, row, mask=known)
        tl.store(at + room, splits, mask=known)
        tl.store(at + 2 * room, first, mask=known)
        tl.store(at + 3 * room, context, mask=known)
        tl.store(at + 4 * room, size, mask=known)
    if row == rows - 1:
        tl.store(num_tasks, before + end_split - first_split)


def plan_decode(page_table: Tensor, context_lens: Tensor, k_cache: Tensor, window: int) -> DecodeTasks:
    """page_table[B, P] int32, context_lens[B] int32 -> what all layers of one window have to reduce in a step."""
    B, device = len(context_lens), context_lens.device
    kv_heads = k_cache.shape[1]
    # From the table's width, not from the lengths: they live on the device.
    most = page_table.shape[1] * k_cache.shape[2]
    split_size = SPLIT_OF_FEW if B <= FEW else SPLIT
    splits = max(1, triton.cdiv(min(most, LONG), split_size), triton.cdiv(most, SPLIT))
    tasks = torch.empty((5, B * splits), dtype=torch.int32, device=device)
    num_tasks = torch.empty(1, dtype=torch.int32, device=device)
    arrived = torch.empty((B, kv_heads), dtype=torch.int32, device=device)
    _list_kernel[(B,)](
        context_lens,
        tasks,
        num_tasks,
        arrived,
        B,
        B * splits,
        window,
        split_size,
        KV_HEADS=kv_heads,
        LONG=LONG,
        SPLIT=SPLIT,
        BLOCK=LISTED,
        num_warps=1,
    )
    return DecodeTasks(tasks, num_tasks, arrived, splits, has_blocks=split_size > BLOCK or most > LONG)
