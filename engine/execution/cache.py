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
class LayerGroup:
    """Consecutive layers whose keys and values have the same shape.

    heads: of keys and values. window: positions that some layer of the group reads at most; 0 for all positions.
    """

    layers: int
    heads: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True)
class CacheSpec:
    """Keys and values that a model stores for each position."""

    groups: tuple[LayerGroup, ...]

    @classmethod
    def uniform(cls, layers: int, heads: int, head_dim: int, windows: Sequence[int] = ()) -> CacheSpec:
        """Return the specification of layers with one shape. windows: of each layer, 0 for full attention."""
        window = max(windows, default=0) if all(windows) else 0
        return cls((LayerGroup(layers, heads, head_dim, window),))

    @property
    def max_head_dim(self) -> int:
        return max(group.head_dim for group in self.groups)

    def bytes_per_page(self, page_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of one page: keys and values of all layers."""
        values = sum(2 * group.layers * group.heads * group.head_dim for group in self.groups)
        return values * page_size * dtype.itemsize


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
        spec: CacheSpec,
        dtype: torch.dtype,
        device: torch.device,
        host_pages: int = 0,
    ) -> KVCache:
        """Return a cache of `num_pages` pages on `device` and `host_pages` in host memory, all zero.

        spec: of one group, whose layers are then one tensor.
        """
        assert len(spec.groups) == 1, spec
        group = spec.groups[0]
        # Zeros, not empty: a page that was never written is gathered as padding, and NaN times a weight of zero is NaN.
        page = (group.layers, 2, group.heads, page_size, group.head_dim)
        shape, host_shape = (num_pages, *page), (host_pages, *page)
        if device.type == "cpu":
            data, host = mmap_zeros(shape, dtype), mmap_zeros(host_shape, dtype)
        else:
            data = torch.zeros(shape, dtype=dtype, device=device)
            host = torch.zeros(host_shape, dtype=dtype, pin_memory=device.type == "cuda")
        return cls(data, host, tuple(PagedKV(*layer.unbind(1)) for layer in data.unbind(1)))

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
