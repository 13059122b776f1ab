"""Disk stores with small pages in ordinary memory."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.kv_disk.folder import DiskFolder
from engine.kv_disk.run_file import Geometry, file_bytes
from engine.kv_disk.store import DiskStore
from engine.scheduling.page_store import MovedPage, PageRun
from tests.limits import HANG_SECONDS

GEOMETRY = Geometry(page_bytes=40, page_size=4)
FINGERPRINT = "fp_0123456789ab"
HOST_PAGES = 64


def digests(name: str, count: int) -> tuple[bytes, ...]:
    """Return digests of a chain."""
    return tuple(hashlib.blake2b(f"{name} {place}".encode(), digest_size=16).digest() for place in range(count))


def content(digest: bytes) -> bytes:
    """Return the bytes of the page with a digest."""
    return hashlib.blake2b(digest, digest_size=GEOMETRY.page_bytes).digest()


def run_bytes(pages: int) -> int:
    """Return the size of a file with a number of pages."""
    return file_bytes(GEOMETRY, pages)


def no_wait() -> None:
    """Return at once: host pages of tests are written by the test."""


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def assert_set(event: threading.Event) -> None:
    """Wait for an event."""
    assert event.wait(HANG_SECONDS)


class Disk:
    """A store and its host memory. clock: returns the seconds of the store."""

    def __init__(
        self,
        parent: Path,
        *,
        fingerprint: str = FINGERPRINT,
        geometry: Geometry = GEOMETRY,
        limit_bytes: int = 1 << 14,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = DiskFolder(parent, fingerprint, geometry, limit_bytes)
        self.host = memoryview(bytearray(HOST_PAGES * geometry.page_bytes))
        self.page_bytes = geometry.page_bytes
        self.store = DiskStore(self.folder, self.host_page, clock)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def host_page(self, page: int) -> memoryview:
        """Return the bytes of a host page."""
        return self.host[page * self.page_bytes : (page + 1) * self.page_bytes]

    def begin_write(self, chain: Sequence[bytes], first: int = 0, wait: Callable[[], None] = no_wait) -> None:
        """Begin to write a run from the first host pages."""
        for page, digest in enumerate(chain):
            self.host_page(page)[:] = content(digest)
        self.store.write(PageRun(first, tuple(chain), tuple(range(len(chain)))), wait)

    def write(self, chain: Sequence[bytes], first: int = 0) -> bool:
        """Write a run; return whether that succeeded."""
        self.begin_write(chain, first)
        (has_succeeded,) = {page.has_succeeded for page in self.moved(len(chain))}
        return has_succeeded

    def read(self, chain: Sequence[bytes]) -> list[bool]:
        """Read pages into the last host pages; return whether each was read. Those must have the right contents."""
        places = [(digest, HOST_PAGES - 1 - place) for place, digest in enumerate(chain)]
        self.host[:] = bytes(len(self.host))
        self.store.read(places)
        moved = self.moved(len(places))
        assert [(page.digest, page.host_page, page.was_read) for page in moved] == [(*place, True) for place in places]
        for page in moved:
            assert not page.has_succeeded or bytes(self.host_page(page.host_page)) == content(page.digest)
        return [page.has_succeeded for page in moved]

    def moved(self, count: int) -> list[MovedPage]:
        """Wait for a number of moved pages."""
        moved: list[MovedPage] = []
        until = time.monotonic() + HANG_SECONDS
        while len(moved) < count:
            assert time.monotonic() < until, f"{len(moved)} of {count} pages were moved"
            time.sleep(0.0005)
            moved += self.store.take_moved()
        assert len(moved) == count
        return moved

    def stored(self, chain: Sequence[bytes]) -> list[bool]:
        """Return whether each page can be read."""
        return [digest in self.store for digest in chain]

    def files(self) -> list[Path]:
        """Return the files with pages."""
        return sorted(self.folder.path.glob("*.kv"))


def write_once(parent: Path, *chains: Sequence[bytes], **options: object) -> Path:
    """Write runs, end the store, and return its folder."""
    with Disk(parent, **options) as disk:  # type: ignore[arg-type]
        for chain in chains:
            assert disk.write(chain)
    return disk.folder.path
