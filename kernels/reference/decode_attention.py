"""Attention of one new token per sequence over its paged context.

Keys and values are gathered in groups of rows of similar length and multiplied as in `prefill_attention`, so both yield
the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paging import PagedKV, view_as_rows
from kernels.plans import DecodeGroup, DecodePlan, GroupedDecodePlan
from kernels.reference.products import softmax_scores, weighted_sum
from kernels.reference.tiles import first_tile_position, padded_length

# Rows are padded to the longest of their group. A group costs 40 us of dispatch and 80 us of planning per step, padding
# 130 to 250 us per MiB of keys (2 threads and 1 thread of a Xeon with AVX-512). Cutting long gathers to the size of the
# L2 cache gained 5 to 30 % with 2 threads and lost as much with 1, so the second bound only limits memory.
PADDING_BYTES_PER_GROUP = 512 << 10
KEY_BYTES_PER_GROUP = 8 << 20


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
    if not isinstance(plan, GroupedDecodePlan):
        plan = plan_decode(page_table, context_lens, kv, window)
    if plan.order is not None:
        q = q.index_select(0, plan.order)
    parts = [_attend(q[group.first : group.last], kv, group, scale) for group in plan.groups]
    result = parts[0] if len(parts) == 1 else torch.cat(parts)
    result = result if plan.restore is None else result.index_select(0, plan.restore)
    return result if out is None else write_rows(result, context_lens, out)


def write_rows(result: Tensor, context_lens: Tensor, out: Tensor) -> Tensor:
    """Copy the rows of result[B, Hq, D] that have a context to `out`, and return it."""
    rows = context_lens.nonzero().squeeze(1)
    return out.index_copy_(0, rows, result.index_select(0, rows))


def _attend(q: Tensor, kv: PagedKV, group: DecodeGroup, scale: float) -> Tensor:
    """Attend from the rows of one group: q[b, Hq, D] -> [b, Hq, D]."""
    b, query_heads, head_dim = q.shape
    pages = view_as_rows(kv.k, kv.page_size * head_dim)
    keys = pages.index_select(0, group.key_rows).view(b * kv.heads, -1, head_dim)
    heads = (b, kv.heads, query_heads // kv.heads)
    weights = softmax_scores(q.reshape(b * kv.heads, -1, head_dim), keys, group.hidden, heads, scale)
    shape = keys.shape
    del keys  # so that the values reuse this memory; allocating fresh memory takes longer than the product
    values = view_as_rows(kv.v, head_dim).index_select(0, group.value_rows).view(shape)
    return weighted_sum(weights, values).reshape(q.shape).contiguous()  # without padding


def plan_decode(page_table: Tensor, context_lens: Tensor, kv: PagedKV, window: int) -> GroupedDecodePlan:
    """Return groups of rows of similar length with cache indices: page_table[B, P] int32, context_lens[B] int32."""
    lengths = context_lens.tolist()
    position_bytes = kv.heads * kv.head_dim * kv.dtype.itemsize
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    bounds = _group_bounds([lengths[row] for row in order], position_bytes)
    if len(bounds) == 1:
        return GroupedDecodePlan((_group(page_table, context_lens, lengths, kv, window, 0),), None, None)
    order_index = torch.tensor(order, device=page_table.device)
    page_table = page_table.index_select(0, order_index)
    context_lens = context_lens.index_select(0, order_index)
    lengths = [lengths[row] for row in order]
    groups = tuple(_group(page_table[a:b], context_lens[a:b], lengths[a:b], kv, window, a) for a, b in bounds)
    return GroupedDecodePlan(groups, order_index, order_index.argsort())


def _group_bounds(lengths: list[int], position_bytes: int) -> list[tuple[int, int]]:
    """Return (first, last) of each group of ascending lengths, filled greedily within the two limits above."""
    bounds = []
    first, filled = 0, 0  # the current group's first row, and the sum of its rows' lengths
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
    kv: PagedKV,
    window: int,
    first: int,
) -> DecodeGroup:
    """Return the indices of one group: page_table[b, P], context_lens[b], and the same lengths as a list."""
    page_size, page_stride = kv.page_size, kv.page_stride_rows
    start = first_tile_position(max(0, min(lengths) - window), page_size) if window else 0
    end = padded_length(max(1, *lengths), page_size)
    positions = torch.arange(start, end, dtype=torch.int32, device=page_table.device)
    ends = context_lens.unsqueeze(1)
    starts = (ends - window).clamp_(min=0) if window else torch.zeros_like(ends)
    hidden = (positions >= ends) | (positions < starts)
    # Positions outside the context may hold another sequence's NaN, which a weight of zero does not cancel. So hidden
    # positions read the row's own first or last position instead.
    own = positions.clamp(starts, ends - 1).clamp_(min=0)  # a row without context reads position 0
    pages = page_table.gather(1, (own // page_size).to(torch.int64))
    heads = torch.arange(kv.heads, dtype=torch.int32, device=page_table.device).view(1, -1, 1)
    value_rows = (pages * page_stride + own % page_size).unsqueeze(1) + heads * page_size
    # The last position of a page maps to that page or, for pages outside the context, to the nearest one inside.
    key_rows = pages[:, page_size - 1 :: page_size].unsqueeze(1) * (page_stride // page_size) + heads
    return DecodeGroup(
        first=first,
        last=first + len(lengths),
        key_rows=key_rows.reshape(-1),
        hidden=hidden[:, None, None],
        value_rows=value_rows.view(-1),
    )
