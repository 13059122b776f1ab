"""The tensors that hold keys and values. Owns memory, not pages: who holds which page is decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.execution.transfer import to_device
from kernels.memory import own_pages


@dataclass(frozen=True)
class KVCache:
    """One tensor for all layers, so that moving a page is one operation; `k` and `v` are its views, one per layer.

    data: [layers, 2, N, Hkv, S, D]. k, v: per layer [N, Hkv, S, D]. host: [M, layers, 2, Hkv, S, D], page by page, so
    that a page is one contiguous piece of a transfer; pinned where the cache is on a CUDA device.
    """

    data: Tensor
    host: Tensor
    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

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
        """A cache of `num_pages` pages on `device` and `host_pages` in host memory, all zero."""
        # Zeros, not empty: a page that was never written is gathered as padding, and NaN times a weight of zero is NaN.
        shape = (layers, 2, num_pages, heads, page_size, dim)
        host_shape = (host_pages, layers, 2, heads, page_size, dim)
        if device.type == "cpu":
            data, host = own_pages(shape, dtype), own_pages(host_shape, dtype)
        else:
            data = torch.zeros(shape, dtype=dtype, device=device)
            host = torch.zeros(host_shape, dtype=dtype, pin_memory=device.type == "cuda")
        return cls(data, host, tuple(data[:, 0].unbind(0)), tuple(data[:, 1].unbind(0)))

    @staticmethod
    def bytes_per_page(page_size: int, layers: int, heads: int, dim: int, dtype: torch.dtype) -> int:
        """Bytes one page takes, keys and values of all layers."""
        return layers * 2 * heads * page_size * dim * dtype.itemsize

    @property
    def num_pages(self) -> int:
        return self.data.shape[2]

    @property
    def page_size(self) -> int:
        return self.data.shape[4]

    @property
    def device(self) -> torch.device:
        return self.data.device

    def copy_pages(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Page sources[i] into page destinations[i], for copy-on-write. All sources are read before any page is
        written.
        """
        assert len(sources) == len(destinations) == len(set(destinations))
        self.data.index_copy_(2, self.index(destinations), self.data.index_select(2, self.index(sources)))

    def index(self, pages: Sequence[int]) -> Tensor:
        """Page numbers, where the pages are."""
        return to_device((np.array(pages, np.int64),), self.data.device)[0]
