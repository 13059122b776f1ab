"""Causal attention of prefill chunks over a paged cache: flash attention (Dao, 2023) with gathered key and value
rows.
"""

# Pointers of a kernel have no Python type; a comment beside each says what it points to.
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

from kernels.chip import shared_bytes
from kernels.page_lookup import cache_rows
from kernels.paging import page_rows
from kernels.query_tiles import QUERIES, query_tiles

LEAST_COLUMNS = 16  # of tl.dot
WIDE_HEAD_BYTES = 132_096  # of shared memory, that five stages take of heads of 256
LOG2_E = 1.4426950408889634


@triton.jit
def _see(
    query,  # [BLOCK_M, HEAD_BLOCK]
    k_cache,  # [N, Hkv, S, D]
    v_cache,  # [N, Hkv, S, D]
    table,  # [P] int32
    block,  # the first position
    kv_head,
    page_rows,
    query_positions,  # [BLOCK_M] int32
    end,  # of what is in the cache
    window,
    scale,  # positive
    largest,  # [BLOCK_M] float32: scaled scores
    total,  # [BLOCK_M] float32
    summed,  # [BLOCK_M, HEAD_BLOCK] float32
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,  # whether some of the block may be, from some query
):
    """One block of positions more. Of one that nothing is hidden of it says the same bits either way: the same block is
    before one tile of queries and beside another.
    """
    dims = tl.arange(0, HEAD_BLOCK)
    positions = block + tl.arange(0, BLOCK_N)
    known = positions < end
    places = cache_rows(table, block, known, kv_head, page_rows, PAGE_SIZE, BLOCK_N)
    at_keys = k_cache + places[None, :] * HEAD_DIM + dims[:, None]
    at_values = v_cache + places[:, None] * HEAD_DIM + dims[None, :]
    dim_inside = dims < HEAD_DIM
    key_inside, value_inside = dim_inside[:, None], dim_inside[None, :]
    if HIDDEN:
        key_inside, value_inside = known[None, :] & key_inside, known[:, None] & value_inside
    scores = tl.dot(query, tl.load(at_keys, mask=key_inside, other=0.0), input_precision=PRECISION)
    if HIDDEN:
        seen = positions[None, :] <= query_positions[:, None]
        if window > 0:
            seen = seen & (positions[None, :] > query_positions[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1) * scale)
    reference = new_largest
    if HIDDEN:
        # Early blocks of a window hold nothing for the later queries of the tile: -inf - -inf must not become NaN.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(tl.fma(scores, tl.full(scores.shape, scale, tl.float32), -reference[:, None]))
    decay = tl.exp2(largest - reference)
    values = tl.load(at_values, mask=value_inside, other=0.0)
    summed = summed * decay[:, None] + tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    return new_largest, total * decay + tl.sum(weights, axis=1), summed


# What differs from batch to batch is not specialised on: its first odd value would compile anew while people wait.
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
    page_rows,  # of D numbers, from one page to the next
    scale,  # of scores, times log2(e)
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
    """One query head of one tile of queries, over all positions these may see. A tile of no queries writes nothing."""
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
    # Rows behind the tile's last query repeat its position, so that no row is without a key to attend to.
    query_positions = position + tl.minimum(rows, queries - 1)
    begin = 0
    if window > 0:
        begin = tl.maximum(position + 1 - window, 0) // BLOCK_N * BLOCK_N
    end = position + queries
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    summed = tl.zeros([BLOCK_M, HEAD_BLOCK], tl.float32)
    table = page_table + table_row * table_stride
    hidden_from = begin
    if q.dtype.element_ty != tl.float32:  # for which two loops have too few registers
        # All queries see all of the blocks before the tile; only of the others, and where there is a window, is
        # anything hidden.
        if window <= 0:
            hidden_from = (position + 1) // BLOCK_N * BLOCK_N
        for block in range(begin, hidden_from, BLOCK_N):
            largest, total, summed = _see(
                query, k_cache, v_cache, table, block, kv_head, page_rows, query_positions, end, window, scale,
                largest, total, summed, HEAD_DIM, HEAD_BLOCK, PAGE_SIZE, BLOCK_N, PRECISION, HIDDEN=False,
            )  # fmt: skip
    for block in range(hidden_from, end, BLOCK_N):
        largest, total, summed = _see(
            query, k_cache, v_cache, table, block, kv_head, page_rows, query_positions, end, window, scale,
            largest, total, summed, HEAD_DIM, HEAD_BLOCK, PAGE_SIZE, BLOCK_N, PRECISION, HIDDEN=True,
        )  # fmt: skip
    target = out + ((first_row + rows) * QUERY_HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(target, (summed / total[:, None]).to(out.dtype.element_ty), mask=inside)


class Program(NamedTuple):
    """How one program walks over the cache."""

    block: int  # positions of one product
    warps: int
    stages: int  # a page is looked up first, which takes two: fewer than three fetch nothing ahead


def program_for(head_block: int, number_bytes: int, shared_bytes: int) -> Program:
    """Return the program for heads of `head_block` numbers, where one may have `shared_bytes` of shared memory.

    Heads of 128 get three stages: with five a program takes half of an H100's shared memory and most registers of a
    multiprocessor, so that a second one has no room. Heads of 256 get blocks of 32, which need no more registers than
    there are. float32 products do not fit into the registers of four warps.
    """
    if number_bytes == 4:
        return Program(32, 8, 2)
    if head_block <= 64:
        return Program(64, 4, 5)
    if head_block <= 128:
        return Program(64, 4, 3)
    return Program(32, 4, 5 if shared_bytes >= WIDE_HEAD_BYTES else 3)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    query_starts: tuple[int, ...],
    context_lens: tuple[int, ...],
    scale: float,
    window: int,
) -> Tensor:
    """q[T, Hq, D], caches [N, Hkv, S, D], page_table[C, P] int32 -> [T, Hq, D]; see `kernels.interface.Kernels`."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attend_tiles(q, k_cache, v_cache, page_table, _tiles(query_starts, context_lens, q.device), out, scale, window)
    return out


def attend_tiles(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    tiles: Tensor,
    out: Tensor,
    scale: float,
    window: int,
) -> None:
    """q[T, Hq, D], caches [N, Hkv, S, D], page_table[C, P] int32, tiles[tiles, 4] int32; writes their rows of
    out[T, Hq, D]. See `kernels.interface.Kernels`."""
    query_heads, head_dim = q.shape[1:]
    assert q.stride(2) == 1 and q.stride(1) == head_dim and out.is_contiguous()
    head_block = max(LEAST_COLUMNS, triton.next_power_of_2(head_dim))
    program = program_for(head_block, q.element_size(), shared_bytes(q.device))
    _prefill_kernel[(query_heads, len(tiles))](
        q,
        k_cache,
        v_cache,
        page_table,
        tiles,
        out,
        q.stride(0),
        page_table.stride(0),
        page_rows(k_cache),
        scale * LOG2_E,
        window,
        QUERY_HEADS=query_heads,
        KV_HEADS=k_cache.shape[1],
        HEAD_DIM=head_dim,
        HEAD_BLOCK=head_block,
        PAGE_SIZE=k_cache.shape[2],
        BLOCK_M=QUERIES,
        BLOCK_N=program.block,
        PRECISION="ieee",  # of float32 operands; half-precision ones are not affected
        num_warps=program.warps,
        num_stages=program.stages,
    )


@functools.lru_cache(maxsize=4)  # all layers of a step ask for the same
def _tiles(query_starts: tuple[int, ...], context_lens: tuple[int, ...], device: torch.device) -> Tensor:
    """Those of chunks: [tiles, 4] int32. Copied from pinned memory: from other memory a copy waits for all that the GPU
    has to do."""
    sizes = (after - before for before, after in pairwise(query_starts))
    tiles = query_tiles(
        (chunk, row, queries, context - queries)
        for chunk, (row, queries, context) in enumerate(zip(query_starts, sizes, context_lens, strict=False))
    )
    pinned = torch.tensor(tiles, dtype=torch.int32, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)
