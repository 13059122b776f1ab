"""Main memory for what is large and lives long."""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import torch
from torch import Tensor

HAS_MAPPINGS = hasattr(mmap, "MAP_ANONYMOUS")
MAPPING = 64 << 20  # bytes that an arena takes of the system's addresses at a time
ALIGNMENT = 64  # bytes


def own_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU in a mapping of their own: they take no memory before they are written, all of it goes back when
    the tensor goes, leaving no holes, and the system may use huge pages, which a walk through gigabytes is faster over.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size or not HAS_MAPPINGS:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(_mapping(size), dtype=dtype).view(shape)


class Arena:
    """Zeros as those of `own_pages`, one tensor behind the other: a model's matrices are often smaller than a huge
    page, or end in one, and a step walks through all of them. A mapping goes back when all tensors in it are gone.
    """

    def __init__(self) -> None:
        self._memory: weakref.ref[mmap.mmap] | None = None
        self._end = 0  # of what is taken of it, in bytes
        self._taking = threading.Lock()  # as models may be loaded by several threads

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """One more, at a multiple of 64 bytes."""
        count = math.prod(shape)
        size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if not size or not HAS_MAPPINGS:
            return torch.zeros(shape, dtype=dtype)
        with self._taking:
            memory = self._memory() if self._memory else None
            if memory is None or self._end + size > len(memory):
                memory, self._end = _mapping(max(size, MAPPING)), 0
                self._memory = weakref.ref(memory)
            offset, self._end = self._end, self._end + size
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def _mapping(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
