"""Cache tensors: pages are copied, moved to host memory and back, over all layers at once."""

from __future__ import annotations

import pytest
import torch

from engine.execution.cache import CacheSpec, KVCache, LayerGroup
from engine.execution.swap import PageSwapper

PAGE_SIZE, SPEC = 4, CacheSpec.uniform(layers=3, heads=2, head_dim=8)


def filled(host_pages: int = 0) -> KVCache:
    cache = KVCache.allocate(6, PAGE_SIZE, SPEC, torch.float32, torch.device("cpu"), host_pages)
    cache.data.normal_(generator=torch.Generator().manual_seed(0))
    return cache


def test_layers_are_views_of_one_tensor():
    """k and v of a layer are [N, Hkv, S, D] with contiguous pages, and writing them writes the cache."""
    cache = filled()
    assert len(cache.layers) == 3
    for layer in range(3):
        for view in (cache.layers[layer].k, cache.layers[layer].v):
            assert view.shape == (6, 2, 4, 8) and view[3].is_contiguous()
    cache.layers[1].v[5] = 7.0
    assert (cache.data[5, 1, 1] == 7.0).all()
    assert (cache.num_pages, cache.page_size) == (6, 4)


def test_the_size_of_a_page_is_known_before_the_cache():
    """The tensor's size is bytes_per_page times the pages."""
    cache = filled()
    assert SPEC.bytes_per_page(PAGE_SIZE, torch.float32) * 6 == cache.data.nbytes
    assert SPEC.bytes_per_page(PAGE_SIZE, torch.bfloat16) * 12 == cache.data.nbytes


def test_a_page_has_the_layers_of_all_groups():
    """Groups may differ in heads and head size."""
    spec = CacheSpec((LayerGroup(3, 2, 8), LayerGroup(1, 4, 16, window=20)))
    assert spec.bytes_per_page(PAGE_SIZE, torch.float32) == 4 * 4 * 2 * (3 * 2 * 8 + 4 * 16)
    assert spec.max_head_dim == 16


@pytest.mark.parametrize(("windows", "window"), [((), 0), ((0, 0), 0), ((20, 30), 30), ((20, 0), 0)])
def test_a_group_needs_the_positions_of_its_widest_layer(windows: tuple[int, ...], window: int):
    """One layer with full attention reads every position."""
    assert CacheSpec.uniform(2, 1, 8, windows).groups[0].window == window


def test_copies_read_everything_before_they_write():
    """A page may be overwritten in the call that copies it elsewhere."""
    cache = filled()
    before = cache.data.clone()
    cache.copy_pages([0, 3, 0], [3, 5, 1])
    for source, destination in ((0, 3), (3, 5), (0, 1), (2, 2), (4, 4), (0, 0)):
        assert torch.equal(cache.data[destination], before[source])


def test_pages_return_from_the_host_unchanged():
    """Pages keep their contents in all layers when they are swapped out, reused and swapped in elsewhere."""
    cache = filled(host_pages=4)
    before = cache.data.clone()
    swap = PageSwapper(cache)
    swap.swap_out([(1, 3), (4, 0)])
    assert torch.equal(cache.data, before)
    cache.data[[1, 4]] = 7.0
    swap.swap_in([(0, 5), (3, 4)])
    swap.finish()
    assert torch.equal(cache.data[5], before[4])
    assert torch.equal(cache.data[4], before[1])
    assert torch.equal(cache.data[0], before[0])
