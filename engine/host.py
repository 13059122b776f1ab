"""Memory and cores that this process can use."""

from __future__ import annotations

import os
from pathlib import Path

# Files with a container's memory limit and usage, for both generations of control groups.
CGROUP_MEMORY = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def free_memory_bytes() -> int:
    """Return the bytes available without swapping: Linux's MemAvailable, limited by a container's remaining allowance.

    On other systems, half of the physical memory is assumed to be free.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit, used in CGROUP_MEMORY:
        try:
            free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
        except (OSError, ValueError):  # no such file, or the content "max"
            continue
    return free


def total_memory_bytes() -> int:
    """Return the bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
