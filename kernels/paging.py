"""How the cache of one layer lies in memory: [N, Hkv, S, D], each page in one piece, pages `stride(0)` numbers apart,
between them those of other layers.
"""

from __future__ import annotations

from torch import Tensor


def page_rows(cache: Tensor) -> int:
    """Rows of D numbers from one page to the next."""
    _, _, positions, dim = cache.shape
    between, *inside = cache.stride()
    assert inside == [positions * dim, dim, 1] and between % dim == 0, cache.stride()
    return between // dim


def as_rows(cache: Tensor, width: int) -> Tensor:
    """The memory from the first page to the end of the last one, as rows of `width` numbers."""
    pages, heads, positions, dim = cache.shape
    numbers = (pages - 1) * cache.stride(0) + heads * positions * dim
    assert cache.stride(0) % width == 0
    return cache.as_strided((numbers // width, width), (width, 1))
