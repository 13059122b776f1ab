"""Swapped pages return from host memory unchanged."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.cache import CacheSpec, KVCache
from engine.execution.swap import STAGING_BYTES, PageSwapper, _runs, half_pages

PAGES = 9
SHUFFLED = st.permutations(range(PAGES))


def filled_cache() -> KVCache:
    """Return a cache in which each page is filled with its number and host pages with -1."""
    spec = CacheSpec.uniform(layers=2, heads=1, head_dim=4)
    cache = KVCache.allocate(PAGES, 2, spec, torch.float32, torch.device("cpu"), host_pages=PAGES)
    cache.data[:] = torch.arange(float(PAGES)).view(-1, 1, 1, 1, 1, 1)
    cache.host.fill_(-1)
    return cache


@given(SHUFFLED, SHUFFLED, SHUFFLED, st.integers(1, PAGES))
def test_swapped_pages_return_unchanged(source, host_slots, back, count):
    """Other pages, on either side, are not modified."""
    cache = filled_cache()
    before, swap = cache.data.clone(), PageSwapper(cache)
    swap.swap_out(list(zip(source[:count], host_slots[:count], strict=True)))
    assert [int(cache.host[page].unique()) for page in host_slots] == [*source[:count], *[-1] * (PAGES - count)]
    swap.swap_in(list(zip(host_slots[:count], back[:count], strict=True)))
    assert swap.is_swapping_in
    swap.finish()
    expected = before.clone()
    expected[list(back[:count])] = before[list(source[:count])]
    assert torch.equal(cache.data, expected) and not swap.is_swapping_in


@given(st.lists(st.integers(0, 20), min_size=1, unique=True))
def test_adjacent_pages_are_one_copy(pages):
    """Pages that are not adjacent are separate copies."""
    runs = list(_runs(pages))
    assert [page for at, first, count in runs for page in range(first, first + count)] == pages
    assert [at for at, _, _ in runs] == [sum(count for _, _, count in runs[:i]) for i in range(len(runs))]
    assert all(a + count != b for (_, a, count), (_, b, _) in pairwise(runs))


@given(st.integers(1, 1 << 30), st.integers(1, 10_000))
def test_the_staging_buffer_does_not_exceed_its_size(page_bytes: int, host_pages: int):
    """Exceptions are pages of more than half that size; the buffer holds at most the host pages."""
    half = half_pages(page_bytes, host_pages)
    assert half == 1 or 2 * half * page_bytes <= STAGING_BYTES
    assert 1 <= half <= host_pages
