"""Memory limits of this process that are lower than the machine's memory: control groups and resource limits.

All files are read below a root folder, so that a test can describe another machine. Sources: the
kernel's cgroup-v1/memory.rst and cgroup-v2.rst for the groups, getrlimit(2) for the limits of a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.control_groups import ROOT, own_groups, read_entry, read_lines, read_number


@dataclass(frozen=True)
class MemoryLimit:
    """One limit in bytes, and the bytes that are used of it. source: its name, for messages."""

    source: str
    limit: int
    used: int

    @property
    def free(self) -> int:
        """Return the bytes that are left."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True)
class _Files:
    """Names of the files of one version of control groups.

    reclaimable: entry of memory.stat with the page cache that the system takes back before it ends a process.
    """

    limits: tuple[str, ...]
    usage: str
    reclaimable: str


FILES = {
    1: _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    # Beyond memory.high a group is slowed down until it hardly runs, so it is a limit for a plan too.
    2: _Files(("memory.max", "memory.high"), "memory.current", "inactive_file"),
}

# Lines of /proc/self/limits, and those of /proc/self/status with the part that is used.
RESOURCE_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}


def memory_limits(root: Path = ROOT) -> list[MemoryLimit]:
    """Return all limits that apply to this process, those of its control group's ancestors included."""
    return [*_group_limits(root), *_resource_limits(root)]


def _group_limits(root: Path) -> Iterator[MemoryLimit]:
    for group in own_groups("memory", root):
        files = FILES[group.version]
        used = read_number(group.folder / files.usage)
        if used is None:  # no such group, or the root, which has no limit
            continue
        used -= min(used, read_entry(group.folder / "memory.stat", files.reclaimable))
        for name in files.limits:
            if (limit := read_number(group.folder / name)) is not None:
                yield MemoryLimit(f"{name} of the control group {group.name}", limit, used)


def _resource_limits(root: Path) -> Iterator[MemoryLimit]:
    limits = read_lines(root / "proc/self/limits")
    for name, used in RESOURCE_LIMITS.items():
        for line in limits:
            soft = line.removeprefix(name).split()[0] if line.startswith(name) else ""
            if soft.isdecimal():  # not "unlimited"
                kilobytes = read_entry(root / "proc/self/status", f"{used}:")
                yield MemoryLimit(f"{name.lower()} (ulimit)", int(soft), 1024 * kilobytes)
