"""Memory and cores that this process can use, and the priority of its threads and children."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICENESS = 10  # of work that can wait

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


def lower_priority(thread_id: int) -> None:
    """Let other threads go before this one, where a system can."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, thread_id, NICENESS)


def lower_process_priority(pid: int) -> None:
    """Let other processes go before a new process that leads a session, where a system can.

    On Linux a session may be a group of its own, with a niceness beside that of its threads (sched(7), autogroups).
    """
    lower_priority(pid)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
