"""Caches with random contents, and a naive implementation of attention over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paging import PagedKV


@dataclass(frozen=True)
class Paged:
    """Cache and page tables of some sequences. Entries that must not be read are NaN."""

    kv: PagedKV
    page_table: Tensor  # [B, P] int32, -1 after a row's own pages
    context_lens: tuple[int, ...]
    contiguous: tuple[tuple[Tensor, Tensor], ...]  # per row: keys and values [context, Hkv, D]

    @property
    def lengths(self) -> Tensor:
        return torch.tensor(self.context_lens, dtype=torch.int32, device=self.kv.k.device)


def make_paged(
    context_lens: tuple[int, ...],
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    seed: int = 0,
    spare_width: int = 0,
) -> Paged:
    """Return rows of the given lengths on scattered pages. `spare_width`: unused columns of the page table."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // page_size) for context in context_lens]
    order = torch.randperm(sum(counts) + 2, generator=generator).to(torch.int32)
    # The layout of a real cache with two layers: page by page, so that a page of one layer is followed by others.
    data = torch.full((len(order), 2, 2, kv_heads, page_size, head_dim), torch.nan)
    caches = data[:, 1].unbind(1)
    table = torch.full((len(counts), max(counts) + spare_width), -1, dtype=torch.int32)
    contiguous = []
    used = 0
    for row, (context, count) in enumerate(zip(context_lens, counts, strict=True)):
        table[row, :count] = order[used : used + count]
        used += count
        positions = torch.arange(context)
        pages = table[row].long()[positions // page_size]
        pair = []
        for cache in caches:
            values = torch.randn((context, kv_heads, head_dim), generator=generator).to(dtype)
            cache[pages, :, positions % page_size] = values.float()
            pair.append(values)
        contiguous.append((pair[0], pair[1]))
    kv = PagedKV(*data.to(dtype).to(device)[:, 1].unbind(1))
    return Paged(kv, table.to(device), context_lens, tuple(contiguous))


def naive_attention(q: Tensor, keys: Tensor, values: Tensor, position: int, scale: float, window: int) -> Tensor:
    """Compute attention of one query [Hq, D] at `position` over keys and values [context, Hkv, D], head by head. Return
    [Hq, D] float64."""
    group = q.shape[0] // keys.shape[1]
    first = max(0, position + 1 - window) if window else 0
    rows = []
    for head, query in enumerate(q.cpu().double()):
        k = keys[first : position + 1, head // group].double()
        v = values[first : position + 1, head // group].double()
        rows.append((k @ query * scale).softmax(dim=0) @ v)
    return torch.stack(rows)


def naive_rows(q: Tensor, paged: Paged, row: int, positions: range, scale: float, window: int) -> Tensor:
    """Compute attention of queries [t, Hq, D] of one row at consecutive positions. Return [t, Hq, D] float64."""
    keys, values = paged.contiguous[row]
    pairs = zip(q, positions, strict=True)
    return torch.stack([naive_attention(query, keys, values, position, scale, window) for query, position in pairs])
