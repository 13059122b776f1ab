"""Control groups of this process, of both versions, with their ancestors (cgroups(7)). Knows no meaning of their files.

All files are read below a root folder, so that a test can describe another machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


@dataclass(frozen=True)
class Group:
    """One group. version: 1 or 2. name: its path below the mount point. folder: of its files."""

    version: int
    name: str
    folder: Path


def own_groups(controller: str, root: Path = ROOT) -> Iterator[Group]:
    """Yield this process's group in each mounted hierarchy that may have `controller`, then its ancestors.

    In a container the mount may show only a part of the hierarchy, and the path may be one outside: the group is then
    looked for at the mount point itself.
    """
    paths: dict[str, PurePosixPath] = {}  # by controller; an empty name is version 2
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    for line in read_lines(root / "proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        is_v1 = kind == "cgroup" and controller in options.split(",")
        own = paths.get(controller if is_v1 else "")
        if own is None or not (is_v1 or kind == "cgroup2"):
            continue
        mount_root, mount = (PurePosixPath(_unescape(field)) for field in fields.split(" ")[3:5])
        is_inside = own.is_relative_to(mount_root) and ".." not in own.parts
        below = own.relative_to(mount_root) if is_inside else PurePosixPath()
        for folder in (below, *below.parents):
            yield Group(1 if is_v1 else 2, str("/" / folder), root / mount.relative_to("/") / folder)


def _unescape(path: str) -> str:
    """Return a path of mountinfo with its octal escapes decoded."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist."""
    with contextlib.suppress(OSError):
        return file.read_text().splitlines()
    return []


def read_number(file: Path) -> int | None:
    """Return the number in a file; None without the file, and for the content "max"."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def read_entry(file: Path, name: str) -> int:
    """Return the number after `name` at the beginning of a line; 0 without one."""
    return next((int(line.split()[1]) for line in read_lines(file) if line.split()[:1] == [name]), 0)
