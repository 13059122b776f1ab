"""Memory layout of one layer's cache: [N, Hkv, S, D] with contiguous pages, `stride(0)` values apart.

The pages of other layers lie in between.
"""

from __future__ import annotations

from torch import Tensor


def page_stride_rows(cache: Tensor) -> int:
    """Return the distance between pages in rows of D values."""
    _, _, positions, dim = cache.shape
    page_stride, *inner_strides = cache.stride()
    assert inner_strides == [positions * dim, dim, 1] and page_stride % dim == 0, cache.stride()
    return page_stride // dim


def view_as_rows(cache: Tensor, width: int) -> Tensor:
    """Return a view of the memory from the first page to the end of the last one, as rows of `width` values."""
    pages, heads, positions, dim = cache.shape
    num_values = (pages - 1) * cache.stride(0) + heads * positions * dim
    assert cache.stride(0) % width == 0
    return cache.as_strided((num_values // width, width), (width, 1))
