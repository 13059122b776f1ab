"""Causal attention of prefill chunks over a paged cache: flash attention (Dao, 2023) with gathered keys and values."""

# Kernel pointers have no Python type; the comment next to each parameter gives its shape and dtype.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import functools
from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paging import PagedKV
from kernels.query_tiles import MAX_TILE_QUERIES, query_tiles
from kernels.triton.device_limits import shared_bytes
from kernels.triton.paged_index import cache_rows

MIN_DOT_COLUMNS = 16  # required by tl.dot
DEEP_HEAD_BYTES = 148_480  # shared memory of five stages for heads of 128
WIDE_HEAD_BYTES = 132_096  # shared memory of five stages for heads of 256
LOG2_E = 1.4426950408889634


@triton.jit
def _accumulate(
    query,  # [BLOCK_M, HEAD_BLOCK]
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    table,  # [P] int32
    block,  # first position
    kv_head,
    page_rows,
    query_positions,  # [BLOCK_M] int32
    end,  # first position past the cached context
    window,
    scale,  # positive
    row_max,  # [BLOCK_M] float32: maximum of scaled scores
    row_sum,  # [BLOCK_M] float32
    acc,  # [BLOCK_M, HEAD_BLOCK] float32
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,  # whether the mask may hide a position of the block from a query
):
    """Accumulate one block of positions.

    A fully visible block gives identical bits with and without HIDDEN: the same block is fully visible to one tile of
    queries and partly to another, depending on the tiling.
    """
    dims = tl.arange(0, HEAD_BLOCK)
    positions = block + tl.arange(0, BLOCK_N)
    valid = positions < end
    cache_offsets = cache_rows(table, block, valid, kv_head, page_rows, PAGE_SIZE, BLOCK_N)
    key_pointers = k_cache + cache_offsets[None, :] * HEAD_DIM + dims[:, None]
    value_pointers = v_cache + cache_offsets[:, None] * HEAD_DIM + dims[None, :]
    dim_inside = dims < HEAD_DIM
    key_inside, value_inside = dim_inside[:, None], dim_inside[None, :]
    if HIDDEN:
        key_inside, value_inside = valid[None, :] & key_inside, valid[:, None] & value_inside
    scores = tl.dot(query, tl.load(key_pointers, mask=key_inside, other=0.0), input_precision=PRECISION)
    if HIDDEN:
        visible = positions[None, :] <= query_positions[:, None]
        if window > 0:
            visible = visible & (positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale)
    reference = new_max
    if HIDDEN:
        # Early blocks of a window are hidden from the tile's later queries: avoid -inf - -inf = NaN.
        reference = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(tl.fma(scores, tl.full(scores.shape, scale, tl.float32), -reference[:, None]))
    decay = tl.exp2(row_max - reference)
    values = tl.load(value_pointers, mask=value_inside, other=0.0)
    acc = acc * decay[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return new_max, row_sum * decay + tl.sum(weights, axis=1), acc


# Values that change with the batch are not specialised: the first odd value would trigger a compilation while serving.
@triton.jit(do_not_specialize=["table_stride"])
def _prefill_kernel(
    q,  # [T, Hq, D] any float
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    page_table,  # [C, P] int32
    tiles,  # [tiles, 4] int32: row of the page table, first query row, number of queries, position of the first query
    out,  # [T, Hq, D]
    q_stride,
    table_stride,
    page_rows,  # rows of D values from one page to the next
    scale,  # softmax scale times log2(e)
    window,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend from one head of one tile of queries over all visible positions. A tile without queries writes nothing."""
    tile = tiles + tl.program_id(1) * 4
    head = tl.program_id(0)
    table_row = tl.load(tile).to(tl.int64)
    first_row = tl.load(tile + 1).to(tl.int64)
    queries = tl.load(tile + 2)
    if queries == 0:
        return
    position = tl.load(tile + 3)
    kv_head = head // (QUERY_HEADS // KV_HEADS)
    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_BLOCK)
    dim_inside = dims < HEAD_DIM
    inside = (rows < queries)[:, None] & dim_inside[None, :]
    query = tl.load(
        q + (first_row + rows)[:, None] * q_stride + head * HEAD_DIM + dims[None, :], mask=inside, other=0.0
    )
    # Rows past the tile's last query repeat its position, so that every row has a key to attend to.
    query_positions = position + tl.minimum(rows, queries - 1)
    begin = 0
    if window > 0:
        begin = tl.maximum(position + 1 - window, 0) // BLOCK_N * BLOCK_N
    end = position + queries
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_BLOCK], tl.float32)
    table = page_table + table_row * table_stride
    hidden_from = begin
    if q.dtype.element_ty != tl.float32:  # float32 has too few registers for two loops
        # Without a window, blocks before the tile are fully visible to all queries; only the others need a mask.
        if window <= 0:
            hidden_from = (position + 1) // BLOCK_N * BLOCK_N
        for block in range(begin, hidden_from, BLOCK_N):
            row_max, row_sum, acc = _accumulate(
                query, k_cache, v_cache, table, block, kv_head, page_rows, query_positions, end, window, scale,
                row_max, row_sum, acc, HEAD_DIM, HEAD_BLOCK, PAGE_SIZE, BLOCK_N, PRECISION, HIDDEN=False,
            )  # fmt: skip
    for block in range(hidden_from, end, BLOCK_N):
        row_max, row_sum, acc = _accumulate(
            query, k_cache, v_cache, table, block, kv_head, page_rows, query_positions, end, window, scale,
            row_max, row_sum, acc, HEAD_DIM, HEAD_BLOCK, PAGE_SIZE, BLOCK_N, PRECISION, HIDDEN=True,
        )  # fmt: skip
    target = out + ((first_row + rows) * QUERY_HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(target, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=inside)


class LaunchParameters(NamedTuple):
    """Launch parameters of one program."""

    block: int  # positions per product
    warps: int
    stages: int  # the page lookup takes two stages, so fewer than three prefetch nothing


def launch_parameters(head_block: int, number_bytes: int, shared_bytes: int) -> LaunchParameters:
    """Return the launch parameters for heads of `head_block` values and `shared_bytes` of shared memory per program.

    Five stages are the fastest on an H200, also for heads of 128, of which only one program fits on a multiprocessor
    then. Heads of 256 get blocks of 32 to fit in the registers. float32 products do not fit in the registers of four
    warps.
    """
    if number_bytes == 4:
        return LaunchParameters(32, 8, 2)
    if head_block <= 64:
        return LaunchParameters(64, 4, 5)
    if head_block <= 128:
        return LaunchParameters(64, 4, 5 if shared_bytes >= DEEP_HEAD_BYTES else 3)
    return LaunchParameters(32, 4, 5 if shared_bytes >= WIDE_HEAD_BYTES else 3)


def prefill_attention(
    q: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    query_starts: tuple[int, ...],
    context_lens: tuple[int, ...],
    scale: float,
    window: int,
) -> Tensor:
    """Attend from prefill chunks: q[T, Hq, D], page_table[C, P] int32 -> [T, Hq, D].

    See `kernels.interface.Kernels.prefill_attention`.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attend_tiles(q, kv, page_table, _tiles(query_starts, context_lens, q.device), out, scale, window)
    return out


def attend_tiles(
    q: Tensor,
    kv: PagedKV,
    page_table: Tensor,
    tiles: Tensor,
    out: Tensor,
    scale: float,
    window: int,
) -> None:
    """Attend from the queries listed in tiles[tiles, 4] int32 and write their rows of out[T, Hq, D].

    q[T, Hq, D], page_table[C, P] int32. See `kernels.interface.Kernels.attend_tiles`.
    """
    query_heads, head_dim = q.shape[1:]
    assert q.stride(2) == 1 and q.stride(1) == head_dim and out.is_contiguous()
    head_block = max(MIN_DOT_COLUMNS, triton.next_power_of_2(head_dim))
    program = launch_parameters(head_block, q.element_size(), shared_bytes(q.device))
    _prefill_kernel[(query_heads, len(tiles))](
        q,
        kv.k,
        kv.v,
        page_table,
        tiles,
        out,
        q.stride(0),
        page_table.stride(0),
        kv.page_stride_rows,
        scale * LOG2_E,
        window,
        QUERY_HEADS=query_heads,
        KV_HEADS=kv.heads,
        HEAD_DIM=head_dim,
        HEAD_BLOCK=head_block,
        PAGE_SIZE=kv.page_size,
        BLOCK_M=MAX_TILE_QUERIES,
        BLOCK_N=program.block,
        PRECISION="ieee",  # applies to float32 operands; half precision is not affected
        num_warps=program.warps,
        num_stages=program.stages,
    )


@functools.lru_cache(maxsize=4)  # all layers of a step share one table
def _tiles(query_starts: tuple[int, ...], context_lens: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the tile table of chunks, [tiles, 4] int32, on the device.

    Copied from pinned memory: a copy from pageable memory waits for all queued GPU work.
    """
    sizes = (after - before for before, after in pairwise(query_starts))
    tiles = query_tiles(
        (chunk, row, queries, context - queries)
        for chunk, (row, queries, context) in enumerate(zip(query_starts, sizes, context_lens, strict=False))
    )
    pinned = torch.tensor(tiles, dtype=torch.int32, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)
