"""Folders with pages of one model and geometry, each locked by the engine that uses it.

Engines of one model share a parent folder: each takes the first numbered folder that is not locked. The kernel releases
a lock when its process ends in any way, so that an engine that is started again finds its old files.

Other programs and users may use the parent folder too. Only files with a name from here are ever removed, a folder only
if nothing else is in it, and a symbolic link is not followed. Folders of other users are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from engine.errors import DiskError
from engine.kv_disk.run_file import Geometry

LOCK_NAME = "lock"
FOLDER_NAME = re.compile(r"carousel-kv-\w+-\d+x\d+-\d{1,4}", re.ASCII)
FILE_NAME = re.compile(r"[0-9a-f]{16}\.kv(\.tmp)?", re.ASCII)
TEMPORARY_SUFFIX = ".tmp"
MAX_FOLDERS = 1000  # of one model in one parent folder


class FolderInUse(Exception):
    """Another engine has the lock of a folder, or another user owns it."""


class LockedFolder:
    """Folder that is locked until it is closed. descriptor: of the folder, for calls with `dir_fd`."""

    def __init__(self, path: Path, *, creates: bool = False) -> None:
        """Open and lock a folder. Raises `FolderInUse`, and `OSError`, for a symbolic link too."""
        self.path = path
        is_new = False
        if creates:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                is_new = True
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._lock = self._take_lock(creates, is_new)
        except BaseException:
            os.close(self.descriptor)
            raise

    def _take_lock(self, creates: bool, is_new: bool) -> int:
        status = os.fstat(self.descriptor)
        if status.st_uid != os.geteuid():
            if is_new:
                raise PermissionError(errno.EPERM, "the file system gives new folders another owner")
            raise FolderInUse
        if creates and stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(self.descriptor, 0o700)
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if creates else 0)
        lock = os.open(LOCK_NAME, flags, 0o600, dir_fd=self.descriptor)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # An engine of another model may have removed the folder between opening and locking.
            if os.fstat(lock).st_nlink == 0:
                raise FolderInUse
        except BlockingIOError:
            os.close(lock)
            raise FolderInUse from None
        except BaseException:
            os.close(lock)
            raise
        return lock

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)
        os.close(self.descriptor)

    def remove(self) -> None:
        """Remove the folder's files and, if nothing else is in it, the folder. It is still to be closed."""
        for name, _ in list(own_files(self.descriptor)):
            os.unlink(name, dir_fd=self.descriptor)
        os.unlink(LOCK_NAME, dir_fd=self.descriptor)
        with suppress(OSError):  # not empty
            self.path.rmdir()


def take_folder(parent: Path, fingerprint: str, geometry: Geometry) -> LockedFolder:
    """Lock the first free folder of a model, which is created if it is missing. Raises `DiskError`."""
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(MAX_FOLDERS):
            name = f"carousel-kv-{fingerprint}-{geometry.page_bytes}x{geometry.page_size}-{number}"
            assert FOLDER_NAME.fullmatch(name), name
            try:
                return LockedFolder(parent / name, creates=True)
            except FolderInUse:
                continue
            except OSError as error:
                # A link or a file has this name, or an engine of another model has removed the folder just now.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
                    raise
    except OSError as error:
        raise unusable(parent, error) from error
    raise DiskError(f"the folder {str(parent)!r} has {MAX_FOLDERS:,} folders of this model, all in use by others")


def unusable(parent: Path, error: OSError) -> DiskError:
    """Return the error that the system's refusal of a parent folder means."""
    return DiskError(f"the folder {str(parent)!r} cannot be used for pages: {error.strerror}")


class OtherFolder(NamedTuple):
    """Folder of another model or geometry that no engine uses. last_use: in nanoseconds since 1970."""

    last_use: int
    path: Path
    size: int  # bytes

    def remove(self) -> None:
        """Remove it, unless an engine uses it by now or the system refuses."""
        with suppress(OSError, FolderInUse), _locked(self.path) as folder:
            folder.remove()


def other_folders(own: LockedFolder) -> list[OtherFolder]:
    """Return the unused folders of other models and geometries beside `own`, the least recently used first."""
    kind = own.path.name.rpartition("-")[0]
    found = []
    for path in own.path.parent.iterdir():
        if not FOLDER_NAME.fullmatch(path.name) or path.name.rpartition("-")[0] == kind:
            continue
        with suppress(OSError, FolderInUse), _locked(path) as folder:
            files = [status for _, status in own_files(folder.descriptor)]
            last_use = max((status.st_mtime_ns for status in files), default=0)
            found.append(OtherFolder(last_use, folder.path, sum(status.st_size for status in files)))
    return sorted(found)


def own_files(descriptor: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of each regular file in a folder that has a name from here."""
    for name in os.listdir(descriptor):
        if FILE_NAME.fullmatch(name):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield name, status


def foreign_names(descriptor: int) -> set[str]:
    """Return the names of all that other programs and users have put into a folder."""
    return set(os.listdir(descriptor)) - {name for name, _ in own_files(descriptor)} - {LOCK_NAME}


@contextmanager
def _locked(path: Path) -> Iterator[LockedFolder]:
    folder = LockedFolder(path)
    try:
        yield folder
    finally:
        folder.close()
