"""How the cache of one layer lies in memory: [N, Hkv, S, D], each page in one piece, pages `stride(0)` numbers apart,
between them those of other layers.
"""

from __future__ import annotations

from torch import Tensor


def page_rows(cache: Tensor) -> int:
    """Rows of D numbers from one page to the next."""
    assert cache[0].is_contiguous() and cache.stride(0) % cache.shape[3] == 0
    return cache.stride(0) // cache.shape[3]


def as_rows(cache: Tensor, width: int) -> Tensor:
    """The memory from the first page to the end of the last one, as rows of `width` numbers."""
    numbers = (cache.shape[0] - 1) * cache.stride(0) + cache[0].numel()
    assert cache.stride(0) % width == 0
    return cache.as_strided((numbers // width, width), (width, 1))
