"""Attention of one new token per sequence: split-KV flash decoding (Dao et al., 2023) over a paged cache.

A context is cut into splits of a fixed size from position 0, each reduced by its own program; the one that ends last
combines them in order. The size is small where rows are few and their contexts not long, so that all of a GPU reads
them. It depends on nothing else of the batch, so neither does the order in which a row's numbers are added. The query
heads of one key/value head form the rows of one matrix product, padded to the 16 rows a tensor core takes.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.early import early, take_turn
from kernels.few_rows import FEW
from kernels.page_lookup import cache_rows
from kernels.paging import page_rows
from kernels.plans import DecodeArrivals, DecodePlan

BLOCK = 64  # positions of one product
SPLIT = 256  # positions; a multiple of BLOCK
SPLIT_OF_FEW = 64  # likewise, where rows are as few as `kernels.few_rows` takes and contexts not longer than LONG
LONG = 4096
CHUNK = 16  # splits combined at a time
COMBINED = 8192  # numbers of them, of as many heads as that is: what a program has registers for beside its own split
LEAST_ROWS = 16  # of tl.dot
NUM_WARPS = 4
NUM_WARPS_WIDE = 8  # of float32, whose products do not fit into the registers of fewer
NUM_STAGES = 3
LOG2_E = 1.4426950408889634


# What differs from batch to batch is not specialised on: its first odd value would compile anew while people wait.
@triton.jit(do_not_specialize=["table_stride", "split_size"])
def _decode_kernel(
    q,  # [B, Hq, D] any float
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    page_table,  # [B, P] int32
    context_lens,  # [B] int32
    arrived,  # [B, Hkv] int32 zeros, which are left as zeros: splits that are reduced
    partial,  # [B, Hq, splits, D] float32: softmax-weighted values of each split
    weight,  # [B, Hq, splits] float32: log2 of the split's softmax denominator
    out,  # [B, Hq, D]
    table_stride,
    page_rows,  # of D numbers, from one page to the next
    scale,  # of scores, times log2(e)
    window,
    split_size,  # positions, of contexts up to LONG
    GROUP: tl.constexpr,  # Hq / Hkv
    GROUP_BLOCK: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,  # positions, of longer contexts
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    HEADS: tl.constexpr,  # combined at a time
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Reduces one split of one row's context for all query heads of one key/value head; and combines all of them when
    it is the last of them to do so."""
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens + row)
    if context > LONG:
        split_size = SPLIT
    first = 0
    if window > 0:
        first = tl.maximum(context - window, 0)
    first_split, end_split = first // split_size, tl.cdiv(context, split_size)
    if split < first_split or split >= end_split:
        return
    begin = tl.maximum(split * split_size, first // BLOCK * BLOCK)
    end = tl.minimum((split + 1) * split_size, context)
    heads = tl.arange(0, GROUP_BLOCK)
    dims = tl.arange(0, HEAD_BLOCK)
    head_inside = heads < GROUP
    dim_inside = dims < HEAD_DIM
    q_rows = row * KV_HEADS * GROUP + kv_head * GROUP + heads
    query = tl.load(
        q + q_rows[:, None] * HEAD_DIM + dims[None, :], mask=head_inside[:, None] & dim_inside[None, :], other=0.0
    )
    largest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    summed = tl.zeros([GROUP_BLOCK, HEAD_BLOCK], tl.float32)
    for block in range(begin, end, BLOCK):
        positions = block + tl.arange(0, BLOCK)
        seen = (positions >= first) & (positions < end)
        rows = cache_rows(page_table + row * table_stride, block, seen, kv_head, page_rows, PAGE_SIZE, BLOCK)
        keys = tl.load(
            k_cache + rows[None, :] * HEAD_DIM + dims[:, None], mask=seen[None, :] & dim_inside[:, None], other=0.0
        )
        scores = tl.dot(query, keys, input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        decay = tl.exp2(largest - new_largest)
        values = tl.load(
            v_cache + rows[:, None] * HEAD_DIM + dims[None, :], mask=seen[:, None] & dim_inside[None, :], other=0.0
        )
        summed = summed * decay[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
        total = total * decay + tl.sum(weights, axis=1)
        largest = new_largest
    summed = summed / total[:, None]
    kept = head_inside[:, None] & dim_inside[None, :]
    if end_split - first_split == 1:
        target = out + q_rows[:, None] * HEAD_DIM + dims[None, :]
        tl.store(target, summed.to(out.dtype.element_ty), mask=kept)
    else:
        splits = tl.num_programs(2)
        places = q_rows * splits + split
        tl.store(partial + places[:, None] * HEAD_DIM + dims[None, :], summed, mask=kept)
        tl.store(weight + places, largest + tl.log2(total), mask=head_inside)
        # Who arrives publishes what all of its threads have written, and sees what those before it did.
        tl.debug_barrier()
        arrivals = arrived + row * KV_HEADS + kv_head
        before = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
        if before == end_split - first_split - 1:
            tl.store(arrivals, 0)
            row_head = (row * KV_HEADS + kv_head) * GROUP
            for head in range(0, GROUP, HEADS):
                _combine(
                    partial, weight, out, row_head + head, GROUP - head, first_split, end_split, splits,
                    HEAD_DIM, HEAD_BLOCK, HEADS, CHUNK,
                )  # fmt: skip


@triton.jit
def _combine(
    partial,  # [B * Hq, splits, D] float32
    weight,  # [B * Hq, splits] float32
    out,  # [B * Hq, D]
    first_head,
    heads_left,
    first,
    end,
    splits,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Combines the splits from `first` to `end` of HEADS query heads, CHUNK at a time from the first one on: so their
    sum has one order, whatever the width of the table, and those of an ordinary context are waited for once.
    """
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, HEAD_BLOCK)
    head_inside = heads < heads_left
    dim_inside = dims < HEAD_DIM
    rows = first_head + heads
    largest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    summed = tl.zeros([HEADS, HEAD_BLOCK], tl.float32)
    for start in range(first // CHUNK * CHUNK, end, CHUNK):
        parts = start + tl.arange(0, CHUNK)
        known = ((parts >= first) & (parts < end))[None, :] & head_inside[:, None]
        places = rows[:, None] * splits + parts[None, :]
        # Past the first-level cache, which knows nothing of other multiprocessors' stores.
        weights = tl.load(weight + places, mask=known, other=float("-inf"), cache_modifier=".cg")
        values = tl.load(
            partial + places[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=known[:, :, None] & dim_inside[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        # Heads behind the last one have no splits: no -inf - -inf and no 0 / 0 may come of that.
        new_largest = tl.maximum(largest, tl.max(weights, axis=1))
        reference = tl.where(head_inside, new_largest, 0.0)
        decay = tl.exp2(largest - reference)
        shares = tl.exp2(weights - reference[:, None])
        summed = summed * decay[:, None] + tl.sum(values * shares[:, :, None], axis=1)
        total = total * decay + tl.sum(shares, axis=1)
        largest = new_largest
    target = out + rows[:, None] * HEAD_DIM + dims[None, :]
    kept = head_inside[:, None] & dim_inside[None, :]
    total = tl.where(head_inside, total, 1.0)
    tl.store(target, (summed / total[:, None]).to(out.dtype.element_ty), mask=kept)


def plan_decode(context_lens: Tensor, kv_heads: int) -> DecodeArrivals:
    """context_lens[B] -> what all layers of a step count with."""
    return DecodeArrivals(torch.zeros((len(context_lens), kv_heads), dtype=torch.int32, device=context_lens.device))


def decode_attention(
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
    """q[B, Hq, D], caches [N, Hkv, S, D], page_table[B, P] int32, context_lens[B] int32 -> [B, Hq, D]; see
    `kernels.interface.Kernels`."""
    out = torch.empty_like(q) if out is None else out
    assert q.is_contiguous() and out.is_contiguous()
    B, query_heads, head_dim = q.shape
    kv_heads, page_size = k_cache.shape[1:3]
    group = query_heads // kv_heads
    # From the table's width, not from the lengths: they live on the device. Splits behind a context return at once.
    split_size = SPLIT_OF_FEW if B <= FEW else SPLIT
    most = page_table.shape[1] * page_size
    splits = max(1, triton.cdiv(min(most, LONG), split_size), triton.cdiv(most, SPLIT))
    if not isinstance(plan, DecodeArrivals):
        plan = plan_decode(context_lens, kv_heads)
    partial = torch.empty((B, query_heads, splits, head_dim), dtype=torch.float32, device=q.device)
    weight = torch.empty((B, query_heads, splits), dtype=torch.float32, device=q.device)
    head_block = max(LEAST_ROWS, triton.next_power_of_2(head_dim))
    group_block = triton.next_power_of_2(group)
    _decode_kernel[(B, kv_heads, splits)](
        q,
        k_cache,
        v_cache,
        page_table,
        context_lens,
        plan.arrived,
        partial,
        weight,
        out,
        page_table.stride(0),
        page_rows(k_cache),
        scale * LOG2_E,
        window,
        split_size,
        GROUP=group,
        GROUP_BLOCK=max(LEAST_ROWS, group_block),
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HEAD_BLOCK=head_block,
        PAGE_SIZE=page_size,
        LONG=LONG,
        SPLIT=SPLIT,
        BLOCK=BLOCK,
        CHUNK=CHUNK,
        HEADS=min(group_block, max(1, COMBINED // (CHUNK * head_block))),
        PRECISION="ieee",  # of float32 operands; half-precision ones are not affected
        num_warps=NUM_WARPS_WIDE if q.dtype == torch.float32 else NUM_WARPS,
        num_stages=NUM_STAGES,
        **early(q.device),
    )
    return out
