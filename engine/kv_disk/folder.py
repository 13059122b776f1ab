"""Files of one engine's pages in its folder, and the bound of their size."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.kv_disk.locked_folder import (
    TEMPORARY_SUFFIX,
    foreign_names,
    other_folders,
    own_files,
    take_folder,
    unusable,
)
from engine.kv_disk.run_file import Geometry, UnusableFile, file_bytes, read_header, read_pages, write_run
from engine.kv_disk.run_index import StoredRun

log = logging.getLogger("carousel.engine")

SAMPLE_BYTES = 16 << 20  # read for the first estimate of the disk's speed
CAUTIOUS_BYTES_PER_SECOND = 200e6  # if that cannot be measured


class DiskFolder:
    """Files with pages, in a folder that no other engine uses at the same time. For one thread at a time.

    limit_bytes: of the own files, and of those that engines of other models have left in the same parent folder.
    """

    def __init__(self, parent: Path, fingerprint: str, geometry: Geometry, limit_bytes: int) -> None:
        """Take a folder in `parent`. Raises `DiskError`."""
        self.geometry = geometry
        self.limit_bytes = limit_bytes
        self.torn_files = 0  # of those that `scan` found
        self.foreign_files = 0
        self._folder = take_folder(parent, fingerprint, geometry)
        try:
            self._others = other_folders(self._folder)
        except OSError as error:
            self._folder.close()
            raise unusable(parent, error) from error

    @property
    def path(self) -> Path:
        """Return the path of the folder."""
        return self._folder.path

    def close(self) -> None:
        """Let another engine use the folder."""
        self._folder.close()

    def scan(self) -> list[StoredRun]:
        """Return the runs of the files, the least recently used first. Remove files that cannot be used."""
        runs, unusable = [], Counter[str]()
        self.foreign_files = len(foreign_names(self._folder.descriptor))
        for name, status in list(own_files(self._folder.descriptor)):
            try:
                if name.endswith(TEMPORARY_SUFFIX):
                    raise UnusableFile("torn")
                with self._open(name, os.O_RDONLY) as descriptor:
                    header = read_header(descriptor, self.geometry)
                runs.append(StoredRun(name, status.st_size, header.first, header.digests, status.st_mtime_ns))
            except UnusableFile as error:
                unusable[str(error)] += 1
                self.remove(name)
            except OSError:  # such as too many open files, which is not the file's fault
                unusable["not readable"] += 1
        self.torn_files = unusable.total()
        if self.foreign_files:
            unusable["of other programs, which stay there"] = self.foreign_files
        if unusable:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in unusable.items())
            log.warning("The folder %s has files that cannot be used for pages: %s.", self.path, reasons)
        return sorted(runs, key=lambda run: run.last_use)

    def write(
        self, first: int, digests: tuple[bytes, ...], pages: Sequence[memoryview], before_batch: Callable[[], None]
    ) -> tuple[str, int]:
        """Write a file, and return its name and size. Raises `OSError`, and what `before_batch` raises."""
        name = f"{secrets.token_hex(8)}.kv"
        temporary = name + TEMPORARY_SUFFIX
        try:
            with self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
                write_run(descriptor, self.geometry, first, digests, pages, before_batch)
            descriptor = self._folder.descriptor
            os.rename(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except BaseException:
            self.remove(temporary)
            raise
        return name, file_bytes(self.geometry, len(digests))

    def read(self, name: str, pages: Sequence[tuple[bytes, memoryview]]) -> Iterator[bool]:
        """Read pages of a file by their digests, and yield whether each is intact. Raises `OSError`, `UnusableFile`."""
        with self._open(name, os.O_RDONLY) as descriptor:
            header = read_header(descriptor, self.geometry)
            places = {digest: place for place, digest in enumerate(header.digests)}
            if any(digest not in places for digest, _ in pages):
                raise UnusableFile("replaced")
            yield from read_pages(descriptor, self.geometry, header, [(places[digest], page) for digest, page in pages])

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._folder.descriptor)

    def remove_others(self, needed_bytes: int) -> int:
        """Remove unused folders of other models, the least recently used first, until all that is left of them and
        `needed_bytes` are within the limit. Return the bytes that are left of them.
        """
        while self._others and needed_bytes + sum(other.size for other in self._others) > self.limit_bytes:
            self._others.pop(0).remove()
        return sum(other.size for other in self._others)

    def save_uses(self, uses: Sequence[tuple[str, int]]) -> None:
        """Set the times of files to their last uses, in nanoseconds since 1970."""
        for name, moment in uses:
            with suppress(OSError):  # removed
                os.utime(name, ns=(moment, moment), dir_fd=self._folder.descriptor, follow_symlinks=False)

    def measure_speed(self) -> tuple[int, float]:
        """Write a file, read it from the disk, and return its bytes and the seconds that reading took.

        It is removed at once, and may exceed the limit for that time: without a speed nothing would be read at all.
        """
        size = self.geometry.page_bytes
        pages = min(max(1, SAMPLE_BYTES // size), self.limit_bytes // size)
        sample = (SAMPLE_BYTES, SAMPLE_BYTES / CAUTIOUS_BYTES_PER_SECOND)
        if not pages or not hasattr(os, "posix_fadvise"):
            return sample
        content = memoryview(bytearray(os.urandom(pages * size)))
        buffers = [content[begin : begin + size] for begin in range(0, len(content), size)]
        digests = tuple(place.to_bytes(16, "big") for place in range(pages))
        name = ""
        try:
            name, _ = self.write(0, digests, buffers, lambda: None)
            with self._open(name, os.O_RDONLY) as descriptor:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            if all(self.read(name, list(zip(digests, buffers, strict=True)))):
                sample = (len(content), time.perf_counter() - begin)
        except (OSError, UnusableFile) as error:
            log.warning("The speed of the folder %s cannot be measured: %s.", self.path, error)
        finally:
            self.remove(name)
        return sample

    @contextmanager
    def _open(self, name: str, flags: int) -> Iterator[int]:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._folder.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
