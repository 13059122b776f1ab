"""The memory and the cores of this machine that can be had."""

from __future__ import annotations

import os
from pathlib import Path

# What a container may use and what it uses, of both generations of control groups.
CGROUP_MEMORY = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def free_memory() -> int:
    """Bytes that can be had without swapping: what Linux calls available, and no more than a container's limit leaves.
    Elsewhere half of the physical memory is assumed free."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit, used in CGROUP_MEMORY:
        try:
            free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return free


def total_memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
