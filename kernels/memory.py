"""Main memory for what is large and lives long."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor


def own_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU in a mapping of their own: they take no memory before they are written, all of it goes back when
    the tensor goes, leaving no holes, and the system may use huge pages, which a walk through gigabytes is faster over.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
