"""Memory layout of one layer's cache: keys and values [N, Hkv, S, D] with contiguous pages, `stride(0)` values apart.

The pages of other layers lie in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of one layer: k and v [N, Hkv, S, D] with equal strides."""

    k: Tensor
    v: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.k.dtype

    @property
    def heads(self) -> int:
        return self.k.shape[1]

    @property
    def page_size(self) -> int:
        """Return the positions of a page."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.k.shape[3]

    @property
    def page_stride(self) -> int:
        """Return the distance between pages in values."""
        return self.k.stride(0)

    @property
    def page_stride_rows(self) -> int:
        """Return the distance between pages in rows of D values."""
        page_stride, *inner_strides = self.k.stride()
        dim = self.head_dim
        assert inner_strides == [self.page_size * dim, dim, 1] and page_stride % dim == 0, self.k.stride()
        return page_stride // dim


def view_as_rows(cache: Tensor, width: int) -> Tensor:
    """Return a view of the memory from the first page to the end of the last one, as rows of `width` values."""
    pages, heads, positions, dim = cache.shape
    num_values = (pages - 1) * cache.stride(0) + heads * positions * dim
    assert cache.stride(0) % width == 0
    return cache.as_strided((num_values // width, width), (width, 1))
