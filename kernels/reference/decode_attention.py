"""Attention of one new token per sequence over its paged context.

Keys and values are gathered for rows of similar length together, and multiplied as `prefill_attention` multiplies them,
so both yield the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paging import as_rows, page_rows
from kernels.plans import DecodeGroup, DecodeGroups, DecodePlan
from kernels.reference.products import softmax_scores, weighted_sum
from kernels.reference.tiles import first_tile_position, padded_length

# Rows of unlike length are padded to the longest of their group. A group costs 40 us of dispatch and 80 us of
# planning in a step, padding 130 to 250 us per MiB of keys (2 threads and 1 thread of a Xeon with AVX-512). Cutting
# long gathers to the size of a second-level cache gained 5 to 30 % with 2 threads and lost as much with 1, so the
# second bound is for memory only.
PADDING_BYTES_PER_GROUP = 512 << 10
KEY_BYTES_PER_GROUP = 8 << 20


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
    if not isinstance(plan, DecodeGroups):
        plan = plan_decode(page_table, context_lens, k_cache, window)
    if plan.order is not None:
        q = q.index_select(0, plan.order)
    parts = [_attend(q[group.first : group.last], k_cache, v_cache, group, scale) for group in plan.groups]
    result = parts[0] if len(parts) == 1 else torch.cat(parts)
    result = result if plan.restore is None else result.index_select(0, plan.restore)
    return result if out is None else write_rows(result, context_lens, out)


def write_rows(result: Tensor, context_lens: Tensor, out: Tensor) -> Tensor:
    """result[B, Hq, D] of the rows that have a context, in `out`."""
    rows = context_lens.nonzero().squeeze(1)
    return out.index_copy_(0, rows, result.index_select(0, rows))


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, group: DecodeGroup, scale: float) -> Tensor:
    """q[b, Hq, D] of one group -> [b, Hq, D]."""
    b, query_heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    pages = as_rows(k_cache, k_cache.shape[2] * head_dim)
    keys = pages.index_select(0, group.key_rows).view(b * kv_heads, -1, head_dim)
    heads = (b, kv_heads, query_heads // kv_heads)
    weights = softmax_scores(q.reshape(b * kv_heads, -1, head_dim), keys, group.hidden, heads, scale)
    shape = keys.shape
    del keys  # their memory is what the values go to; fresh memory takes longer than the product
    values = as_rows(v_cache, head_dim).index_select(0, group.value_rows).view(shape)
    return weighted_sum(weights, values).reshape(q.shape).contiguous()  # without padding


def plan_decode(page_table: Tensor, context_lens: Tensor, k_cache: Tensor, window: int) -> DecodeGroups:
    """page_table[B, P] int32, context_lens[B] int32 -> groups of rows of similar length and their indices."""
    lengths = context_lens.tolist()
    position_bytes = k_cache.shape[1] * k_cache.shape[3] * k_cache.element_size()
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    bounds = _group_bounds([lengths[row] for row in order], position_bytes)
    if len(bounds) == 1:
        return DecodeGroups((_group(page_table, context_lens, lengths, k_cache, window, 0),), None, None)
    order_index = torch.tensor(order, device=page_table.device)
    page_table = page_table.index_select(0, order_index)
    context_lens = context_lens.index_select(0, order_index)
    lengths = [lengths[row] for row in order]
    groups = tuple(_group(page_table[a:b], context_lens[a:b], lengths[a:b], k_cache, window, a) for a, b in bounds)
    return DecodeGroups(groups, order_index, order_index.argsort())


def _group_bounds(lengths: list[int], position_bytes: int) -> list[tuple[int, int]]:
    """Ascending lengths -> (first, last) of each group, filled greedily within the two budgets above."""
    bounds = []
    first, filled = 0, 0  # the group that is being filled: its first row, and its rows' lengths together
    for row, longest in enumerate(lengths):
        rows = row + 1 - first
        padding = rows * longest - (filled + longest)
        is_full = (
            padding * position_bytes > PADDING_BYTES_PER_GROUP or rows * longest * position_bytes > KEY_BYTES_PER_GROUP
        )
        if is_full and row > first:
            bounds.append((first, row))
            first, filled = row, 0
        filled += longest
    return [*bounds, (first, len(lengths))]


def _group(
    page_table: Tensor,
    context_lens: Tensor,
    lengths: list[int],
    k_cache: Tensor,
    window: int,
    first: int,
) -> DecodeGroup:
    """page_table[b, P], context_lens[b] and the same as `lengths` -> the indices of one group."""
    _, kv_heads, page_size, _ = k_cache.shape
    between = page_rows(k_cache)
    start = first_tile_position(max(0, min(lengths) - window), page_size) if window else 0
    end = padded_length(max(1, *lengths), page_size)
    positions = torch.arange(start, end, dtype=torch.int32, device=page_table.device)
    ends = context_lens.unsqueeze(1)
    starts = (ends - window).clamp_(min=0) if window else torch.zeros_like(ends)
    hidden = (positions >= ends) | (positions < starts)
    # Whatever stands outside a context is another sequence's business and may be NaN, which a weight of zero does not
    # silence: hidden positions read the row's own first or last position instead.
    own = positions.clamp(starts, ends - 1).clamp_(min=0)  # of a row without context its first
    pages = page_table.gather(1, (own // page_size).to(torch.int64))
    heads = torch.arange(kv_heads, dtype=torch.int32, device=page_table.device).view(1, -1, 1)
    value_rows = (pages * between + own % page_size).unsqueeze(1) + heads * page_size
    # The last position of a page lies in its page or, for pages outside the context, in the nearest one inside.
    key_rows = pages[:, page_size - 1 :: page_size].unsqueeze(1) * (between // page_size) + heads
    return DecodeGroup(
        first=first,
        last=first + len(lengths),
        key_rows=key_rows.reshape(-1),
        hidden=hidden[:, None, None],
        value_rows=value_rows.view(-1),
    )
