"""Memory and cores that this process can use, and the priority of its threads and children."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from engine.control_groups import ROOT
from engine.memory_limits import MemoryLimit, memory_limits

NICENESS = 10  # of work that can wait, beside that of its process


def free_memory_bytes(root: Path = ROOT) -> int:
    """Return the bytes available without swapping: Linux's MemAvailable, or less where a limit leaves less.

    root: folder of the files that are read. On other systems, half of the physical memory is assumed to be free.
    """
    return min(each.free for each in (_machine_memory(root), *memory_limits(root)))


def total_memory(root: Path = ROOT) -> MemoryLimit:
    """Return the limit that allows this process the least memory; without a lower one, the physical memory."""
    return min((_machine_memory(root), *memory_limits(root)), key=lambda each: each.limit)


def _machine_memory(root: Path) -> MemoryLimit:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total // 2
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return MemoryLimit("the machine's memory", total, total - free)


def return_free_memory() -> None:
    """Return the memory of freed temporaries to the system, which the C library would keep for later ones (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def usable_cpus() -> set[int]:
    """Return the numbers of the cores, or of their hardware threads, that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(usable_cpus())


def lower_priority(thread_id: int) -> None:
    """Let other threads go before this one, where a system can."""
    with contextlib.suppress(OSError, AttributeError):
        # Of the process, as the calling thread may have a lower priority already. The system limits the sum.
        os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS)


def lower_process_priority(pid: int) -> None:
    """Let other processes go before a new process that leads a session, where a system can.

    On Linux a session may be a group of its own, with a niceness beside that of its threads (sched(7), autogroups).
    """
    lower_priority(pid)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
