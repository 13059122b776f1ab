"""Storage of pages on disk as the scheduler uses it: calls return at once, and one thread moves the pages.

One lock guards all that the engine's thread and the other one share. It is held for operations in memory only, never
while a file is opened, read, written or removed, nor while `wait` blocks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

import msgspec

from engine.kv_disk.folder import DiskFolder
from engine.kv_disk.run_file import UnusableFile, file_bytes
from engine.kv_disk.run_index import RunIndex, StoredRun
from engine.scheduling.page_store import MovedPage, PageRun

log = logging.getLogger("carousel.engine")

PAUSE_SECONDS = 30.0  # without writes, after one has failed
SAVE_SECONDS = 60.0  # between two times at which the uses of files are saved
CLOSE_SECONDS = 5.0  # longest wait for a disk that does not respond
MAX_FILES = 1 << 16  # each is opened at the start
HALF_LIFE_BYTES = 64 << 20  # after which a read has half of its weight in the mean speed
# After which a slow read does not count: a disk that seems too slow is not read, and would seem so for ever.
FORGET_SECONDS = 60.0


class DiskCounts(msgspec.Struct, frozen=True, array_like=True):
    """State and totals since the start. torn_files, foreign_files: found at the start and not used.

    Pages that were not read: checksum_failures, with wrong contents, and read_failures, with a file that is missing,
    truncated or not readable. Pages that were not written: write_failures, by an error of the disk or in the time
    without writes after one. dropped_pages: removed, or not written, because of the limit of size.
    """

    stored_bytes: int
    files: int
    pages: int
    pages_written: int
    pages_read: int
    torn_files: int
    foreign_files: int
    checksum_failures: int
    read_failures: int
    write_failures: int
    dropped_pages: int


class _Closed(Exception):
    """The store is closed in the middle of a write."""


class DiskStore:
    """A `PageStore` in the files of a `DiskFolder`, which belongs to it.

    host_page: returns the writable bytes of a host page. clock: in seconds.
    """

    def __init__(
        self,
        folder: DiskFolder,
        host_page: Callable[[int], memoryview],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._host_page = host_page
        self._clock = clock
        self._changed = threading.Condition()  # guards the following fields
        self._index = RunIndex()
        self._reads: deque[Sequence[tuple[bytes, int]]] = deque()
        self._writes: deque[tuple[PageRun, Callable[[], None], int]] = deque()
        self._moved: list[MovedPage] = []
        self._pages_to_read = 0
        self._is_closing = False
        self._written = self._read = self._checksum_failures = self._read_failures = 0
        self._write_failures = self._dropped = 0
        self._resumes_at = self._saved_at = clock()  # of the other thread alone
        self._failing: set[str] = set()  # of "read" and "write", if the last one has failed
        for run in folder.scan():
            self._index.add(run)
        self._make_room(0, 0)
        self._sample_bytes, self._sample_seconds = map(float, folder.measure_speed())
        self._measured_speed, self._sampled_at = self._sample_bytes / self._sample_seconds, clock()
        self._thread = threading.Thread(target=self._work, name="kv-disk", daemon=True)
        self._thread.start()

    # Calls of the engine's thread --------------------------------------------------------------------------------

    def __contains__(self, digest: object) -> bool:
        """Return whether a page can be read."""
        with self._changed:
            return digest in self._index

    def __len__(self) -> int:
        """Return the number of pages that can be read."""
        with self._changed:
            return self._index.num_pages

    def latest(self, limit: int) -> list[bytes]:
        """Return the pages that were used last, those of a chain in its order."""
        with self._changed:
            return self._index.latest(limit)

    def touch(self, digests: Sequence[bytes]) -> None:
        """Note that the pages of a chain are in use. Called after `write`, it leaves the written pages, which are the
        chain's end, to be dropped first.
        """
        with self._changed:
            self._index.touch(digests, time.time_ns())

    def write(self, run: PageRun, wait: Callable[[], None]) -> None:
        """Begin to write pages."""
        with self._changed:
            self._writes.append((run, wait, self._index.next_use(time.time_ns())))
            self._changed.notify()

    def read(self, pages: Sequence[tuple[bytes, int]]) -> None:
        """Begin to read pages, before all that is waiting to be written. They are in use from now on."""
        with self._changed:
            self._reads.append(pages)
            self._pages_to_read += len(pages)
            self._index.touch([digest for digest, _ in pages], time.time_ns())
            self._changed.notify()

    def take_moved(self) -> list[MovedPage]:
        """Return the pages that were moved since the last call."""
        with self._changed:
            moved, self._moved = self._moved, []
        return moved

    def read_seconds(self, pages: int) -> float:
        """Return the expected seconds for reading pages, after those that wait to be read."""
        with self._changed:
            speed = self._sample_bytes / self._sample_seconds
            if self._clock() - self._sampled_at > FORGET_SECONDS:
                speed = max(speed, self._measured_speed)
            return (pages + self._pages_to_read) * self._folder.geometry.page_bytes / speed

    def take_marks(self) -> tuple[list[bytes], list[bytes]]:
        """Return the digests of marks that were gained and lost since the last call; at the first call all marks."""
        with self._changed:
            return self._index.take_marks()

    @property
    def counts(self) -> DiskCounts:
        """Return the state of the store."""
        with self._changed:
            return DiskCounts(
                stored_bytes=self._index.bytes,
                files=self._index.num_runs,
                pages=self._index.num_pages,
                pages_written=self._written,
                pages_read=self._read,
                torn_files=self._folder.torn_files,
                foreign_files=self._folder.foreign_files,
                checksum_failures=self._checksum_failures,
                read_failures=self._read_failures,
                write_failures=self._write_failures,
                dropped_pages=self._dropped,
            )

    def close(self) -> None:
        """End the other thread, and let another engine use the folder. What waits is dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    # The other thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with suppress(_Closed):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._reads or self._writes or self._is_closing, SAVE_SECONDS)
                self._serve_reads()
                with self._changed:
                    write = self._writes.popleft() if self._writes else None
                if write is not None:
                    self._write(*write)
                if self._clock() - self._saved_at >= SAVE_SECONDS:
                    self._save_uses()
        self._save_uses()
        self._folder.close()

    def _save_uses(self) -> None:
        self._saved_at = self._clock()
        with self._changed:
            used = self._index.take_used()
        self._folder.save_uses(used)

    def _serve_reads(self) -> None:
        """Read all pages that wait. Raise `_Closed` if the store is closed."""
        while True:
            with self._changed:
                if self._is_closing:
                    raise _Closed
                if not self._reads:
                    return
                pages = self._reads.popleft()
                located = [(self._index.get(digest), digest, host) for digest, host in pages]
            for run, group in groupby(located, key=lambda page: page[0]):
                self._read_run(run, [(digest, host) for _, digest, host in group])

    def _read_run(self, run: StoredRun | None, pages: list[tuple[bytes, int]]) -> None:
        results: list[bool] = []
        begin = self._clock()
        if run is not None:
            try:
                buffers = [(digest, self._host_page(host)) for digest, host in pages]
                for is_intact in self._folder.read(run.name, buffers):
                    results.append(is_intact)
            except (OSError, UnusableFile) as error:
                self._warn("read", error)
            else:
                self._failing.discard("read")
        seconds = self._clock() - begin
        intact = sum(results)
        missing = len(pages) - len(results)
        if run is not None and intact < len(pages):
            with self._changed:
                self._index.remove(run)
            self._folder.remove(run.name)
        with self._changed:
            self._pages_to_read -= len(pages)
            self._read += intact
            self._checksum_failures += len(results) - intact
            self._read_failures += missing
            self._add_sample(len(results) * self._folder.geometry.page_bytes, seconds)
        self._report(pages, [*results, *[False] * missing], was_read=True)

    def _add_sample(self, size: int, seconds: float) -> None:
        self._sampled_at = self._clock()
        weight = 0.5 ** (size / HALF_LIFE_BYTES)
        self._sample_bytes = self._sample_bytes * weight + size
        self._sample_seconds = self._sample_seconds * weight + (seconds if size else 0.0)

    def _write(self, run: PageRun, wait: Callable[[], None], use: int) -> None:
        pages = list(zip(run.digests, run.host_pages, strict=True))
        has_succeeded = False
        try:
            has_succeeded = self._write_run(run, wait, use)
        except _Closed:
            raise
        except Exception as error:  # `wait` may raise anything, and the host pages must be returned
            self._resumes_at = self._clock() + PAUSE_SECONDS
            self._warn("write", error)
            with self._changed:
                self._write_failures += len(pages)
        self._report(pages, [has_succeeded] * len(pages), was_read=False)

    def _write_run(self, run: PageRun, wait: Callable[[], None], use: int) -> bool:
        """Write a file; return False if it must not be written now. Raises `OSError`, and what `wait` raises."""
        wait()  # also before the host pages are returned unwritten
        size = file_bytes(self._folder.geometry, len(run.digests))
        with self._changed:
            if all(self._index.get(digest) is not None for digest in run.digests):
                return True
            if size > self._folder.limit_bytes:
                self._dropped += len(run.digests)
                return False
            if self._clock() < self._resumes_at:
                self._write_failures += len(run.digests)
                return False
        self._make_room(size, 1)
        host_pages = [self._host_page(page) for page in run.host_pages]
        name, size = self._folder.write(run.first, run.digests, host_pages, self._serve_reads)
        self._folder.save_uses([(name, use)])
        self._failing.discard("write")
        with self._changed:
            self._index.add(StoredRun(name, size, run.first, run.digests, use))
            self._written += len(run.digests)
        return True

    def _make_room(self, size: int, files: int) -> None:
        """Remove files until one of `size` bytes is within the limits."""
        others = self._folder.remove_others(self._index.bytes + size)
        while True:
            with self._changed:
                is_full = self._index.bytes + others + size > self._folder.limit_bytes
                run = self._index.oldest() if is_full or self._index.num_runs + files > MAX_FILES else None
                if run is None:
                    return
                before = self._index.num_pages
                self._index.remove(run)
                self._dropped += before - self._index.num_pages
            self._folder.remove(run.name)

    def _warn(self, action: str, error: Exception) -> None:
        """Log the first of several failures."""
        if action not in self._failing:
            log.warning("Cannot %s pages in %s: %s. Further failures are counted.", action, self._folder.path, error)
        self._failing.add(action)

    def _report(self, pages: Iterable[tuple[bytes, int]], results: Iterable[bool], *, was_read: bool) -> None:
        with self._changed:
            for (digest, host), has_succeeded in zip(pages, results, strict=True):
                self._moved.append(MovedPage(digest, host, was_read, has_succeeded))
