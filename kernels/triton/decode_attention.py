"""Attention of one new token per sequence: split-KV flash decoding (Dao et al., 2023) over a paged cache.

The splits of all contexts (`kernels.triton.decode_tasks`) are distributed over a fixed number of programs per
multiprocessor. Each split is reduced independently; the program that finishes a row's last split combines all of them
in order. The query heads of one key/value head form the rows of one matrix product, padded to the 16 rows of a tensor
core.
"""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paging import PagedKV
from kernels.plans import DecodePlan, SplitDecodePlan
from kernels.triton.decode_tasks import BLOCK, plan_decode, read_task
from kernels.triton.device_limits import multiprocessors, shared_bytes
from kernels.triton.paged_index import cache_rows
from kernels.triton.pdl import PREFETCH_ALIGN_BYTES, fetch, pdl_options

CHUNK = 16  # splits combined at a time
MAX_COMBINED_VALUES = 8192  # values combined at a time over all heads; more do not fit in registers next to the split
MAX_COMBINED_HEADS = 2  # heads combined at a time when several programs share a multiprocessor
MIN_DOT_ROWS = 16  # required by tl.dot
NUM_WARPS = 2  # fewer leave more programs on a multiprocessor, each with loads in flight
NUM_WARPS_WIDE_HEAD = 4  # heads of 256 do not fit in the registers of fewer warps
NUM_WARPS_FLOAT32 = 8  # float32 products do not fit in the registers of fewer warps
NUM_STAGES_FLOAT32 = 3  # shared memory has no room for more stages in float32
NUM_STAGES = 5  # the page lookup takes two stages, so fewer would prefetch nothing
NUM_STAGES_SINGLE_BLOCK = 2  # when a split is one block
NUM_STAGES_SMALL_CHIP = 4  # for heads of 256 when a program may use less than WIDE_HEAD_BYTES of shared memory
WIDE_HEAD_BYTES = 141_320
WIDE_HEAD_FLOAT32_BYTES = 151_620  # shared memory for heads of 256 in float32, for any number of stages
PROGRAMS_PER_MULTIPROCESSOR = 64  # over all heads; several times those that run at once, so that all end together
LOG2_E = 1.4426950408889634


# Values that change with the batch are not specialised: the first odd value would trigger a compilation while serving.
@triton.jit(do_not_specialize=["table_stride", "max_tasks", "splits"])
def _decode_kernel(
    q,  # [B, Hq, D] any float
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    page_table,  # [B, P] int32
    tasks,  # [5, max_tasks] int32, see `kernels.plans.SplitDecodePlan`
    num_tasks,  # [1] int32
    arrived,  # [B, Hkv] int32 zeros, left as zeros: number of reduced splits
    partial,  # [B, Hq, splits, D] float32: softmax-weighted values of each split
    weight,  # [B, Hq, splits] float32: log2 of the split's softmax denominator
    out,  # [B, Hq, D]
    table_stride,
    page_rows,  # rows of D values from one page to the next
    max_tasks,
    splits,
    scale,  # softmax scale times log2(e)
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
    USE_PDL: tl.constexpr,
):
    """Process every num_programs-th task for all query heads of one key/value head: reduce one split of a row's
    context and, if it is the row's last split to finish, combine all of them."""
    kv_head = tl.program_id(1)
    dims = tl.arange(0, HEAD_BLOCK)
    dim_inside = dims < HEAD_DIM
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
    count = tl.load(num_tasks)
    row, split, first, context, size = read_task(tasks, tl.program_id(0), count, max_tasks)
    if USE_PDL:
        begin = tl.maximum(split * size, first // BLOCK * BLOCK)
        _fetch_block(
            k_cache, v_cache, page_table + row * table_stride, begin, context, kv_head, page_rows,
            HEAD_DIM, PAGE_SIZE, BLOCK,
        )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    # Loop-invariant values are recomputed for each task: hoisting them would occupy a sixth of the registers.
    for task in tl.range(tl.program_id(0), count, tl.num_programs(0), disable_licm=True):
        row, split, first, context, size = read_task(tasks, task, count, max_tasks)
        first_split, end_split = first // size, tl.cdiv(context, size)
        begin = tl.maximum(split * size, first // BLOCK * BLOCK)
        end = tl.minimum((split + 1) * size, context)
        heads = tl.arange(0, GROUP_BLOCK)
        head_inside = heads < GROUP
        q_rows = row * KV_HEADS * GROUP + kv_head * GROUP + heads
        store_mask = head_inside[:, None] & dim_inside[None, :]
        query = tl.load(q + q_rows[:, None] * HEAD_DIM + dims[None, :], mask=store_mask, other=0.0)
        row_max = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
        row_sum = tl.zeros([GROUP_BLOCK], tl.float32)
        acc = tl.zeros([GROUP_BLOCK, HEAD_BLOCK], tl.float32)
        for block in range(begin, end, BLOCK):
            positions = block + tl.arange(0, BLOCK)
            visible = (positions >= first) & (positions < end)
            rows = cache_rows(page_table + row * table_stride, block, visible, kv_head, page_rows, PAGE_SIZE, BLOCK)
            keys = tl.load(
                k_cache + rows[None, :] * HEAD_DIM + dims[:, None],
                mask=visible[None, :] & dim_inside[:, None],
                other=0.0,
            )
            scores = tl.dot(query, keys, input_precision=PRECISION) * scale
            scores = tl.where(visible[None, :], scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_max[:, None])
            decay = tl.exp2(row_max - new_max)
            values = tl.load(
                v_cache + rows[:, None] * HEAD_DIM + dims[None, :],
                mask=visible[:, None] & dim_inside[None, :],
                other=0.0,
            )
            acc = acc * decay[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
            row_sum = row_sum * decay + tl.sum(weights, axis=1)
            row_max = new_max
        acc = acc / row_sum[:, None]
        if end_split - first_split == 1:
            target = out + q_rows[:, None] * HEAD_DIM + dims[None, :]
            tl.store(target, acc.to(out.dtype.element_ty), mask=store_mask)
        else:
            offsets = q_rows * splits + split
            tl.store(partial + offsets[:, None] * HEAD_DIM + dims[None, :], acc, mask=store_mask)
            tl.store(weight + offsets, row_max + tl.log2(row_sum), mask=head_inside)
            # Barrier and acq_rel atomic publish this program's stores and make those of earlier programs visible.
            tl.debug_barrier()
            counter = arrived + row * KV_HEADS + kv_head
            finished = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
            if finished == end_split - first_split - 1:
                tl.store(counter, 0)
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
    context,  # 0: fetch nothing
    kv_head,
    page_rows,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Prefetch the block of keys and values that starts at position `begin`, one contiguous run at a time."""
    RUN: tl.constexpr = min(PAGE_SIZE & -PAGE_SIZE, BLOCK)
    BYTES: tl.constexpr = RUN * HEAD_DIM * k_cache.dtype.element_ty.primitive_bitwidth // 8
    if BYTES % PREFETCH_ALIGN_BYTES == 0:
        offsets = tl.arange(0, BLOCK)
        valid = begin + offsets < context
        rows = cache_rows(table, begin, valid, kv_head, page_rows, PAGE_SIZE, BLOCK)
        fetch(k_cache + rows * HEAD_DIM, valid & (offsets % RUN == 0), BYTES)
        fetch(v_cache + rows * HEAD_DIM, valid & (offsets % RUN == 0), BYTES)


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
    """Combine the splits `first` to `end` of HEADS query heads, CHUNK at a time in ascending order.

    The summation order is thus independent of the table width, and a typical context needs a single round of loads.
    """
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, HEAD_BLOCK)
    head_inside = heads < heads_left
    dim_inside = dims < HEAD_DIM
    rows = first_head + heads
    row_max = tl.full([HEADS], float("-inf"), tl.float32)
    row_sum = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, HEAD_BLOCK], tl.float32)
    for start in range(first // CHUNK * CHUNK, end, CHUNK):
        split_ids = start + tl.arange(0, CHUNK)
        valid = ((split_ids >= first) & (split_ids < end))[None, :] & head_inside[:, None]
        offsets = rows[:, None] * splits + split_ids[None, :]
        # Bypass the L1 cache, which is not coherent with stores of other multiprocessors.
        weights = tl.load(weight + offsets, mask=valid, other=float("-inf"), cache_modifier=".cg")
        values = tl.load(
            partial + offsets[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=valid[:, :, None] & dim_inside[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        # Heads past the last one have no splits: avoid -inf - -inf and 0 / 0.
        new_max = tl.maximum(row_max, tl.max(weights, axis=1))
        reference = tl.where(head_inside, new_max, 0.0)
        decay = tl.exp2(row_max - reference)
        shares = tl.exp2(weights - reference[:, None])
        acc = acc * decay[:, None] + tl.sum(values * shares[:, :, None], axis=1)
        row_sum = row_sum * decay + tl.sum(shares, axis=1)
        row_max = new_max
    target = out + rows[:, None] * HEAD_DIM + dims[None, :]
    store_mask = head_inside[:, None] & dim_inside[None, :]
    row_sum = tl.where(head_inside, row_sum, 1.0)
    tl.store(target, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=store_mask)


def decode_launch_options(
    head_block: int, group_block: int, number_bytes: int, has_blocks: bool, shared_bytes: int
) -> dict[str, int]:
    """Return the launch options of the decode kernel.

    Splits of several blocks come in large numbers, so a program combines few heads at a time and leaves registers to
    others. Single-block splits are few, so each program may use more.
    """
    heads = min(group_block, max(1, MAX_COMBINED_VALUES // (CHUNK * head_block)))
    is_half = number_bytes == 2
    stages = NUM_STAGES if is_half else NUM_STAGES_FLOAT32
    warps = NUM_WARPS if is_half else NUM_WARPS_FLOAT32
    if is_half and head_block > 128:
        warps = NUM_WARPS_WIDE_HEAD
        if shared_bytes < WIDE_HEAD_BYTES:
            stages = NUM_STAGES_SMALL_CHIP
    return {
        "HEADS": min(heads, MAX_COMBINED_HEADS) if has_blocks else heads,
        "num_warps": warps,
        "num_stages": stages if has_blocks else NUM_STAGES_SINGLE_BLOCK,
    }


def max_head_dim(number_bytes: int, shared_bytes: int) -> int:
    """Return the largest head size for which kernels fit in `shared_bytes` of shared memory per program."""
    return 128 if number_bytes == 4 and shared_bytes < WIDE_HEAD_FLOAT32_BYTES else 256


def decode_attention(
    q: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from one query per sequence, see `kernels.interface.Kernels.decode_attention`.

    q[B, Hq, D], page_table[B, P] int32, context_lens[B] int32 -> [B, Hq, D].
    """
    out = torch.empty_like(q) if out is None else out
    assert q.is_contiguous() and out.is_contiguous()
    B, query_heads, head_dim = q.shape
    group = query_heads // kv.heads
    # Early launch reads the plan before the previous kernel ends; a plan that is made only now would not be visible.
    launch = pdl_options(q.device)
    if not isinstance(plan, SplitDecodePlan):
        plan, launch = plan_decode(page_table, context_lens, kv, window), {"USE_PDL": False}
    max_tasks = plan.tasks.shape[1]
    programs = min(max_tasks, triton.cdiv(PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(q.device), kv.heads))
    partial = torch.empty((B, query_heads, plan.splits, head_dim), dtype=torch.float32, device=q.device)
    weight = torch.empty((B, query_heads, plan.splits), dtype=torch.float32, device=q.device)
    head_block = max(MIN_DOT_ROWS, triton.next_power_of_2(head_dim))
    group_block = triton.next_power_of_2(group)
    _decode_kernel[(programs, kv.heads)](
        q,
        kv.k,
        kv.v,
        page_table,
        plan.tasks,
        plan.num_tasks,
        plan.arrived,
        partial,
        weight,
        out,
        page_table.stride(0),
        kv.page_stride_rows,
        max_tasks,
        plan.splits,
        scale * LOG2_E,
        GROUP=group,
        GROUP_BLOCK=max(MIN_DOT_ROWS, group_block),
        KV_HEADS=kv.heads,
        HEAD_DIM=head_dim,
        HEAD_BLOCK=head_block,
        PAGE_SIZE=kv.page_size,
        BLOCK=BLOCK,
        CHUNK=CHUNK,
        PRECISION="ieee",  # applies to float32 operands; half precision is not affected
        **decode_launch_options(head_block, group_block, q.element_size(), plan.has_blocks, shared_bytes(q.device)),
        **launch,
    )
    return out
