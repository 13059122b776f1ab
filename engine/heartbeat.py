"""Count of the engine's progress, in memory that the API process reads.

The count measures progress, not mere liveness. Only the engine's main thread increments it: once per turn of the
worker's loop, and inside a step for each layer or each task of a compiled kernel. No other thread could continue
counting while the main thread hangs, and a stopped process does not count. Reading it costs the engine nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from pathlib import Path


class Heartbeat:
    """One engine's progress count. The API process creates it; the engine process opens it by its descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _new_file() if descriptor is None else descriptor
        self._memory = mmap.mmap(self._descriptor, mmap.PAGESIZE)
        self._count = ctypes.c_uint64.from_buffer(self._memory)

    def beat(self) -> None:
        """Count one unit of progress."""
        self._count.value += 1

    @property
    def count(self) -> int:
        """Return the progress since the engine started."""
        return self._count.value

    @property
    def address(self) -> int:
        """Return the address of the count in this process, for compiled code."""
        return ctypes.addressof(self._count)

    def fileno(self) -> int:
        """Return the descriptor that the other process opens."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor. The count stays readable."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("carousel-heartbeat")
    else:  # not Linux
        descriptor, path = tempfile.mkstemp()
        Path(path).unlink()
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor
