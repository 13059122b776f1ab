"""Host memory for large, long-lived tensors."""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import torch
from torch import Tensor

HAS_MAPPINGS = hasattr(mmap, "MAP_ANONYMOUS")
MIN_MAPPING_BYTES = 64 << 20  # bytes: minimum size of an arena's mapping
ALIGNMENT_BYTES = 64


def mmap_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a zeroed CPU tensor in an anonymous memory mapping of its own.

    It takes no memory before it is written, all memory is returned with the tensor without fragmentation, and the
    system may use huge pages, which speeds up streaming through gigabytes.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size or not HAS_MAPPINGS:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(_mapping(size), dtype=dtype).view(shape)


class Arena:
    """Allocator of zeroed tensors as from `mmap_zeros`, placed one after another.

    A model's matrices are often smaller than a huge page, or end inside one, and a step streams through all of them. A
    mapping is returned when all tensors in it are gone.
    """

    def __init__(self) -> None:
        self._memory: weakref.ref[mmap.mmap] | None = None
        self._end = 0  # bytes used of the current mapping
        self._lock = threading.Lock()  # several threads may load models

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a new zeroed tensor, aligned to 64 bytes."""
        count = math.prod(shape)
        size = -(-count * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if not size or not HAS_MAPPINGS:
            return torch.zeros(shape, dtype=dtype)
        with self._lock:
            memory = self._memory() if self._memory else None
            if memory is None or self._end + size > len(memory):
                memory, self._end = _mapping(max(size, MIN_MAPPING_BYTES)), 0
                self._memory = weakref.ref(memory)
            offset, self._end = self._end, self._end + size
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def _mapping(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
