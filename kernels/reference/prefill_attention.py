"""Causal attention of prefill chunks over their paged contexts, one tile of queries at a time to bound memory."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paging import PagedKV, view_as_rows
from kernels.reference.products import softmax_scores, weighted_sum
from kernels.reference.tiles import LANES, TILE, first_tile_position, padded_length

QUERY_TILE = 64  # a tile has Hq * 64 * context scores; tiles of 16 to 256 take the same time within the noise


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
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for chunk, context in enumerate(context_lens):
        first, last = query_starts[chunk], query_starts[chunk + 1]
        position = context - (last - first)  # position of the first query
        start = first_tile_position(max(0, position + 1 - window), kv.page_size) if window else 0
        pages = _used_pages(kv, page_table[chunk], start, context)
        keys = _gather(kv.k, pages, kv.page_stride_rows)
        values = _gather(kv.v, pages, kv.page_stride_rows)
        # Past the context the page may hold another sequence's NaN, which a weight of zero does not cancel.
        values[:, context - start :].zero_()
        for a in range(first, last, QUERY_TILE):
            b = min(a + QUERY_TILE, last)
            out[a:b] = _attend(q[a:b], keys, values, position + a - first, start, scale, window)
    return out


def _used_pages(kv: PagedKV, pages: Tensor, start: int, context: int) -> Tensor:
    """Return the pages of positions `start` to `context`, padded to whole lanes: pages[P] -> [P']."""
    page_size = kv.page_size
    padded_pages = padded_length(context, page_size) // page_size
    used = pages[start // page_size : -(-context // page_size)]
    if padded_pages * page_size - start > used.shape[0] * page_size:
        # Pad lanes with the last page: the extra positions are outside the context and hidden.
        missing = padded_pages - start // page_size - used.shape[0]
        used = torch.cat((used, used[-1:].expand(missing)))
    return used


def _gather(cache: Tensor, pages: Tensor, page_stride: int) -> Tensor:
    """Gather the positions of pages[P]: cache [N, Hkv, S, D], `page_stride` in rows -> [Hkv, P * S, D]."""
    _, heads, page_size, head_dim = cache.shape
    first = pages * (page_stride // page_size)
    rows = first + torch.arange(heads, dtype=pages.dtype, device=pages.device).unsqueeze(1)
    return view_as_rows(cache, page_size * head_dim).index_select(0, rows.view(-1)).view(heads, -1, head_dim)


def _attend(q: Tensor, keys: Tensor, values: Tensor, position: int, start: int, scale: float, window: int) -> Tensor:
    """Attend from q[t, Hq, D] at `position` onwards to keys and values [Hkv, L, D] at `start` onwards -> [t, Hq, D]."""
    t, query_heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    begin = max(0, first_tile_position(max(0, position + 1 - window), TILE) - start) if window else 0
    end = min(keys.shape[1], padded_length(position + t - start, LANES))
    key_positions = torch.arange(start + begin, start + end, device=q.device)
    query_positions = torch.arange(position, position + t, device=q.device).unsqueeze(1)
    hidden = key_positions > query_positions
    if window:
        hidden |= key_positions <= query_positions - window
    heads = (kv_heads, t, query_heads // kv_heads)
    grouped = q.view(t, kv_heads, -1, head_dim).transpose(0, 1).reshape(kv_heads, -1, head_dim)
    weights = softmax_scores(grouped, keys[:, begin:end], hidden.unsqueeze(1), heads, scale)
    return weighted_sum(weights, values[:, begin:end]).view(*heads, head_dim).transpose(0, 1).reshape(q.shape)
