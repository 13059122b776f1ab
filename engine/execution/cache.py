"""KV cache tensors. Owns memory only; page ownership is managed by the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.execution.transfer import to_device
from kernels.huge_pages import mmap_zeros
from kernels.paging import PagedKV


@dataclass(frozen=True)
class KVCache:
    """One tensor for all layers, page by page; `layers` are its views.

    Moving a page moves one piece of memory, the part of a page that a layer reads is contiguous, and memory is used
    page by page as the cache fills.

    data: [N, layers, 2, Hkv, S, D]. layers: keys and values of each. host: [M, layers, 2, Hkv, S, D]; pinned if the
    cache is on a CUDA device.
    """

    data: Tensor
    host: Tensor
    layers: tuple[PagedKV, ...]

    @classmethod
    def allocate(
        cls,
        num_pages: int,
        page_size: int,
        layers: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        host_pages: int = 0,
    ) -> KVCache:
        """Return a cache of `num_pages` pages on `device` and `host_pages` in host memory, all zero."""
        # Zeros, not empty: a page that was never written is gathered as padding, and NaN times a weight of zero is NaN.
        page = (layers, 2, heads, page_size, dim)
        shape, host_shape = (num_pages, *page), (host_pages, *page)
        if device.type == "cpu":
            data, host = mmap_zeros(shape, dtype), mmap_zeros(host_shape, dtype)
        else:
            data = torch.zeros(shape, dtype=dtype, device=device)
            host = torch.zeros(host_shape, dtype=dtype, pin_memory=device.type == "cuda")
        return cls(data, host, tuple(PagedKV(*layer.unbind(1)) for layer in data.unbind(1)))

    @staticmethod
    def bytes_per_page(page_size: int, layers: int, heads: int, dim: int, dtype: torch.dtype) -> int:
        """Return the bytes of one page: keys and values of all layers."""
        return layers * 2 * heads * page_size * dim * dtype.itemsize

    @property
    def num_pages(self) -> int:
        return self.data.shape[0]

    @property
    def page_size(self) -> int:
        return self.data.shape[4]

    @property
    def device(self) -> torch.device:
        return self.data.device

    def copy_pages(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy pages `sources` to pages `destinations` (copy-on-write).

        All sources are read before any destination is written.
        """
        assert len(sources) == len(destinations) == len(set(destinations))
        self.data.index_copy_(0, self.index(destinations), self.data.index_select(0, self.index(sources)))

    def index(self, pages: Sequence[int]) -> Tensor:
        """Return page numbers as a tensor on the cache's device."""
        return to_device((np.array(pages, np.int64),), self.data.device)[0]
