"""Memory limits of this process that are lower than the machine's memory: control groups and resource limits.

All files are read below a root folder, so that a test can describe another machine. Sources: cgroups(7) and the
kernel's cgroup-v1/memory.rst and cgroup-v2.rst for the groups, getrlimit(2) for the limits of a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


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
class _Hierarchy:
    """Names of the files of one generation of control groups.

    reclaimable: entry of memory.stat with the page cache that the system takes back before it ends a process.
    """

    limits: tuple[str, ...]
    usage: str
    reclaimable: str


V1 = _Hierarchy(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
# Beyond memory.high a group is slowed down until it hardly runs, so it is a limit for a plan too.
V2 = _Hierarchy(("memory.max", "memory.high"), "memory.current", "inactive_file")

# Lines of /proc/self/limits, and those of /proc/self/status with the part that is used.
RESOURCE_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}


def memory_limits(root: Path = ROOT) -> list[MemoryLimit]:
    """Return all limits that apply to this process, those of its control group's ancestors included."""
    return [*_group_limits(root), *_resource_limits(root)]


def _group_limits(root: Path) -> Iterator[MemoryLimit]:
    for hierarchy, mount, path in _memory_groups(root):
        for folder in (path, *path.parents):
            directory = root / mount.relative_to("/") / folder
            used = _number(directory / hierarchy.usage)
            if used is None:  # no such group, or the root, which has no limit
                continue
            used -= min(used, _entry(directory / "memory.stat", hierarchy.reclaimable))
            for name in hierarchy.limits:
                if (limit := _number(directory / name)) is not None:
                    yield MemoryLimit(f"{name} of the control group {PurePosixPath('/') / folder}", limit, used)


def _memory_groups(root: Path) -> Iterator[tuple[_Hierarchy, PurePosixPath, PurePosixPath]]:
    """Yield each mounted hierarchy with a path of this process's group relative to its mount point.

    In a container the mount may show only a part of the hierarchy, and the path may be one outside: the group is then
    looked for at the mount point itself.
    """
    paths: dict[str, PurePosixPath] = {}  # by controller; an empty name is version 2
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        is_v1 = kind == "cgroup" and "memory" in options.split(",")
        own = paths.get("memory" if is_v1 else "")
        if own is None or not (is_v1 or kind == "cgroup2"):
            continue
        mount_root, mount = (PurePosixPath(_unescape(field)) for field in fields.split(" ")[3:5])
        is_inside = own.is_relative_to(mount_root) and ".." not in own.parts
        yield V1 if is_v1 else V2, mount, own.relative_to(mount_root) if is_inside else PurePosixPath()


def _resource_limits(root: Path) -> Iterator[MemoryLimit]:
    limits = _lines(root / "proc/self/limits")
    for name, used in RESOURCE_LIMITS.items():
        for line in limits:
            soft = line.removeprefix(name).split()[0] if line.startswith(name) else ""
            if soft.isdecimal():  # not "unlimited"
                kilobytes = _entry(root / "proc/self/status", f"{used}:")
                yield MemoryLimit(f"{name.lower()} (ulimit)", int(soft), 1024 * kilobytes)


def _unescape(path: str) -> str:
    """Return a path of mountinfo with its octal escapes decoded."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist."""
    with contextlib.suppress(OSError):
        return file.read_text().splitlines()
    return []


def _number(file: Path) -> int | None:
    """Return the number in a file; None without the file, and for the content "max"."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _entry(file: Path, name: str) -> int:
    """Return the number after `name` at the beginning of a line; 0 without one."""
    return next((int(line.split()[1]) for line in _lines(file) if line.split()[:1] == [name]), 0)
