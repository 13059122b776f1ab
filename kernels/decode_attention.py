"""Attention of one new token per sequence: split-KV flash decoding (Dao et al., 2023) over a paged cache.

The splits of all contexts (`kernels.decode_tasks`) are shared out among as many programs as the device is worth, each
reduced by itself; whoever ends last of a row's combines them in order. The query heads of one key/value head form the
rows of one matrix product, padded to the 16 rows a tensor core takes.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.chip import multiprocessors, shared_bytes
from kernels.decode_tasks import BLOCK, plan_decode, read_task
from kernels.early import ALIGNED, early, fetch
from kernels.page_lookup import cache_rows
from kernels.paging import page_rows
from kernels.plans import DecodePlan, DecodeTasks

CHUNK = 16  # splits combined at a time
COMBINED = 8192  # numbers of them, of as many heads as that is: what a program has registers for beside its own split
COMBINED_OF_MANY = 2  # heads, where a program shares a multiprocessor with others
LEAST_ROWS = 16  # of tl.dot
NUM_WARPS = 4
NUM_WARPS_WIDE = 8  # of float32, whose products do not fit into the registers of fewer
NUM_STAGES_WIDE = 3  # of float32, for more of which there is no shared memory
NUM_STAGES = 5  # fewer ask for nothing ahead: a page is looked up first, which takes two of them
NUM_STAGES_OF_ONE = 2  # where a split is one block
NUM_STAGES_NARROW_CHIP = 4  # of heads of 256 where a program may not have WIDE_HEAD_BYTES of shared memory
WIDE_HEAD_BYTES = 141_320
WIDE_FLOAT_BYTES = 151_620  # that heads of 256 take in float32, however many stages
PROGRAMS = 16  # of all heads, for each multiprocessor, which runs a third of them at once; more have nothing to do
LOG2_E = 1.4426950408889634


# What differs from batch to batch is not specialised on: its first odd value would compile anew while people wait.
@triton.jit(do_not_specialize=["table_stride", "room", "splits"])
def _decode_kernel(
    q,  # [B, Hq, D] any float
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    page_table,  # [B, P] int32
    tasks,  # [5, room] int32, see `kernels.plans.DecodeTasks`
    num_tasks,  # [1] int32
    arrived,  # [B, Hkv] int32 zeros, which are left as zeros: splits that are reduced
    partial,  # [B, Hq, splits, D] float32: softmax-weighted values of each split
    weight,  # [B, Hq, splits] float32: log2 of the split's softmax denominator
    out,  # [B, Hq, D]
    table_stride,
    page_rows,  # of D numbers, from one page to the next
    room,
    splits,
    scale,  # of scores, times log2(e)
    GROUP: tl.constexpr,  # Hq / Hkv
    GROUP_BLOCK: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    HEADS: tl.constexpr,  # combined at a time
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Every so many tasks, for all query heads of one key/value head: reduces a split of a row's context, and combines
    all of them when it is the last of them to be reduced."""
    kv_head = tl.program_id(1)
    dims = tl.arange(0, HEAD_BLOCK)
    dim_inside = dims < HEAD_DIM
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    count = tl.load(num_tasks)
    row, split, first, context, size = read_task(tasks, tl.program_id(0), count, room)
    if EARLY:
        begin = tl.maximum(split * size, first // BLOCK * BLOCK)
        _fetch_block(
            k_cache, v_cache, page_table + row * table_stride, begin, context, kv_head, page_rows,
            HEAD_DIM, PAGE_SIZE, BLOCK,
        )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    # What is the same for all tasks is computed for each anew: kept, it would have a sixth of the registers.
    for task in tl.range(tl.program_id(0), count, tl.num_programs(0), disable_licm=True):
        row, split, first, context, size = read_task(tasks, task, count, room)
        first_split, end_split = first // size, tl.cdiv(context, size)
        begin = tl.maximum(split * size, first // BLOCK * BLOCK)
        end = tl.minimum((split + 1) * size, context)
        heads = tl.arange(0, GROUP_BLOCK)
        head_inside = heads < GROUP
        q_rows = row * KV_HEADS * GROUP + kv_head * GROUP + heads
        kept = head_inside[:, None] & dim_inside[None, :]
        query = tl.load(q + q_rows[:, None] * HEAD_DIM + dims[None, :], mask=kept, other=0.0)
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
        if end_split - first_split == 1:
            target = out + q_rows[:, None] * HEAD_DIM + dims[None, :]
            tl.store(target, summed.to(out.dtype.element_ty), mask=kept)
        else:
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
def _fetch_block(
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    table,  # [P] int32, the pages of one row
    begin,
    context,  # 0: nothing
    kv_head,
    page_rows,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Asks for the block of keys and values from `begin` on, a run of them that lie behind one another at a time."""
    RUN: tl.constexpr = min(PAGE_SIZE & -PAGE_SIZE, BLOCK)
    BYTES: tl.constexpr = RUN * HEAD_DIM * k_cache.dtype.element_ty.primitive_bitwidth // 8
    if BYTES % ALIGNED == 0:
        places = tl.arange(0, BLOCK)
        known = begin + places < context
        rows = cache_rows(table, begin, known, kv_head, page_rows, PAGE_SIZE, BLOCK)
        fetch(k_cache + rows * HEAD_DIM, known & (places % RUN == 0), BYTES)
        fetch(v_cache + rows * HEAD_DIM, known & (places % RUN == 0), BYTES)


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


def shape_of_program(
    head_block: int, group_block: int, number_bytes: int, has_blocks: bool, shared_bytes: int
) -> dict[str, int | None]:
    """What a launch says of it: for many tasks six programs fit on a multiprocessor or, of heads of 128, the three
    that there is shared memory for; tasks of one block are few, and each has what it likes."""
    heads = min(group_block, max(1, COMBINED // (CHUNK * head_block)))
    narrow = number_bytes == 2
    stages = NUM_STAGES if narrow else NUM_STAGES_WIDE
    if narrow and head_block > 128 and shared_bytes < WIDE_HEAD_BYTES:
        stages = NUM_STAGES_NARROW_CHIP
    return {
        "HEADS": min(heads, COMBINED_OF_MANY) if has_blocks else heads,
        "num_warps": NUM_WARPS if narrow else NUM_WARPS_WIDE,
        "num_stages": stages if has_blocks else NUM_STAGES_OF_ONE,
        "maxnreg": (80 if head_block <= 64 else 168) if has_blocks and narrow and head_block <= 128 else None,
    }


def max_head_dim(number_bytes: int, shared_bytes: int) -> int:
    """Return the largest heads whose kernels have room where a program may have `shared_bytes` of shared memory."""
    return 128 if number_bytes == 4 and shared_bytes < WIDE_FLOAT_BYTES else 256


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
    # What it would read before its turn was made in good time, or only now.
    launch = early(q.device)
    if not isinstance(plan, DecodeTasks):
        plan, launch = plan_decode(page_table, context_lens, k_cache, window), {"EARLY": False}
    room = plan.tasks.shape[1]
    programs = min(room, triton.cdiv(PROGRAMS * multiprocessors(q.device), kv_heads))
    partial = torch.empty((B, query_heads, plan.splits, head_dim), dtype=torch.float32, device=q.device)
    weight = torch.empty((B, query_heads, plan.splits), dtype=torch.float32, device=q.device)
    head_block = max(LEAST_ROWS, triton.next_power_of_2(head_dim))
    group_block = triton.next_power_of_2(group)
    _decode_kernel[(programs, kv_heads)](
        q,
        k_cache,
        v_cache,
        page_table,
        plan.tasks,
        plan.num_tasks,
        plan.arrived,
        partial,
        weight,
        out,
        page_table.stride(0),
        page_rows(k_cache),
        room,
        plan.splits,
        scale * LOG2_E,
        GROUP=group,
        GROUP_BLOCK=max(LEAST_ROWS, group_block),
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HEAD_BLOCK=head_block,
        PAGE_SIZE=page_size,
        BLOCK=BLOCK,
        CHUNK=CHUNK,
        PRECISION="ieee",  # of float32 operands; half-precision ones are not affected
        **shape_of_program(head_block, group_block, q.element_size(), plan.has_blocks, shared_bytes(q.device)),
        **launch,
    )
    return out
