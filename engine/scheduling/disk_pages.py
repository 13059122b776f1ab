"""Pages of sessions on their way from host memory to disk and back.

The pages of a session are written when it begins, a few in each step, and not when they are evicted: they outlive the
process, and a step never waits for a disk. A page is copied to a host page in the step, like one that is swapped out,
and written from there by another thread. A prompt that goes on where pages on disk begin is held back while they are
read into host pages, unless computing them takes less time; from there they are found like all others. When an engine
starts, what was used last is read into free host pages, so that most prompts need not wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.scheduling.batch_builder import BatchBuilder
from engine.scheduling.page_store import MovedPage, PageRun, PageStore
from engine.scheduling.pages import HostPool, PagePool, Rank

STAGING_SECONDS = 0.001  # of a step, for copying pages that are written
WRITING_DIVISOR, READING_DIVISOR = 4, 2  # one in so many host pages at most is written, and read, at the same time
MAX_WAITING_PAGES = 1 << 18  # to be written
READ_AHEAD_PAGES = 32  # at a time: a prompt that needs others waits for them
POLL_SECONDS = 0.005  # between looks for pages that were written while nothing else happens


class _Place(NamedTuple):
    """Position of a page in its chain, and the digest before it."""

    position: int
    previous: bytes


class DiskRead:
    """Pages that a prompt waits for, until a time at which computing them would have been as fast."""

    def __init__(self, pages: DiskPages, digests: Sequence[bytes], deadline: float, clock: Callable[[], float]) -> None:
        self._pages = pages
        self._left = list(reversed(digests))
        self._deadline = deadline
        self._clock = clock

    def done(self) -> bool:
        """Return whether the pages can be found, could not be read, or should not be waited for any longer."""
        self._pages.settle()
        while self._left and not self._pages.is_reading(self._left[-1]):
            self._left.pop()
        return not self._left or self._clock() >= self._deadline


class DiskPages:
    """Pages of one engine that are to be written, and host pages that its store writes or reads."""

    def __init__(
        self,
        store: PageStore,
        pool: PagePool,
        host: HostPool,
        batch_builder: BatchBuilder,
        rank: Callable[[bytes], Rank | None],
        count: Callable[[str, int], None],
        pages_per_step: int,
    ) -> None:
        """rank: of a page that sessions keep. count: adds pages to the counter with a name."""
        self._store = store
        self._pool = pool
        self._host = host
        self._batch_builder = batch_builder
        self._rank = rank
        self._count = count
        self._pages_per_step = pages_per_step
        self._waiting: OrderedDict[bytes, _Place] = OrderedDict()  # to be written, in the order of their chains
        self._chains: dict[bytes, Sequence[bytes]] = {}  # that have pages to be written, by their last page
        self._writing: dict[bytes, int] = {}  # host page of each
        self._reading: dict[bytes, int] = {}
        self._borrowed: set[bytes] = set()  # of those that are written: from the cache in host memory
        self._runs: list[PageRun] = []  # of the step that is being scheduled
        self._ahead = deque(store.latest(host.total // READING_DIVISOR))  # to be read before a prompt needs them
        self._report_marks()

    def __contains__(self, digest: object) -> bool:
        return digest in self._store

    def __len__(self) -> int:
        """Return the number of pages on disk."""
        return len(self._store)

    @property
    def host_pages(self) -> list[int]:
        """Return the host pages that are being written or read."""
        return [*self._writing.values(), *self._reading.values()]

    def is_reading(self, digest: bytes) -> bool:
        """Return whether a page is being read."""
        return digest in self._reading

    # Writing ------------------------------------------------------------------------------------------------------

    def keep(self, digests: Sequence[bytes]) -> None:
        """Write the pages of a session, except for those that are on disk."""
        self._store.touch(digests)
        previous = b""
        for index, digest in enumerate(digests):
            if digest not in self._store and digest not in self._writing:
                self._waiting[digest] = _Place(index, previous)
            previous = digest
        if digests[-1] in self._waiting:
            self._chains[digests[-1]] = digests
        while len(self._waiting) > MAX_WAITING_PAGES:
            self._chains.pop(self._waiting.popitem(last=False)[0], None)

    def begin_step(self) -> None:
        """Copy some of the pages that are to be written to host memory, in the step that is being scheduled."""
        self.settle()
        room, pages, places = self._room, list[tuple[bytes, int]](), list[_Place]()
        while self._waiting and len(pages) < room:
            digest, place = self._waiting.popitem(last=False)
            host_page = None if digest in self._store or digest in self._writing else self._host_page(digest)
            if host_page is None:
                self._chains.pop(digest, None)
            else:
                self._writing[digest] = host_page
                pages.append((digest, host_page))
                places.append(place)
        start = 0
        for end in range(1, len(pages) + 1):
            if end == len(pages) or places[end].previous != pages[end - 1][0]:
                digests, host_pages = zip(*pages[start:end], strict=True)
                self._runs.append(PageRun(places[start].position, digests, host_pages))
                start = end

    @property
    def has_runs(self) -> bool:
        """Return whether the last step has copied pages that are to be written."""
        return bool(self._runs)

    def write(self, wait: Callable[[], None]) -> None:
        """Begin to write the pages of the last step. wait: blocks until they are in host memory."""
        runs, self._runs = self._runs, []
        for run in runs:
            self._store.write(run, wait)

    @property
    def _room(self) -> int:
        """Return how many pages a step may copy."""
        left = max(1, self._host.total // WRITING_DIVISOR) - len(self._writing)
        return max(0, min(self._pages_per_step, left, self._host.available))

    def _host_page(self, digest: bytes) -> int | None:
        """Return a host page with the content of a page, or that gets it in this step; None if it is lost."""
        if digest in self._host:
            self._borrowed.add(digest)
            return self._host.take(digest)
        pages = self._pool.lookup((digest,))
        if not pages:
            return None
        host_pages = self._host.allocate(1)
        self._batch_builder.swap_out(pages, host_pages)
        return host_pages[0]

    # Reading ------------------------------------------------------------------------------------------------------

    def missing(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return the pages of a part of a chain that have to be read, up to the first that is nowhere."""
        found: list[bytes] = []
        for digest in digests:
            if digest not in self._host:
                if digest not in self._store:
                    break
                found.append(digest)
        room = min(self._host.total // READING_DIVISOR - len(self._reading), self._host.available)
        new = 0
        for index, digest in enumerate(found):
            new += digest not in self._reading
            if new > room:
                return found[:index]
        return found

    def read_seconds(self, pages: int) -> float:
        """Return the expected seconds for reading pages."""
        return self._store.read_seconds(pages)

    def read(self, digests: Sequence[bytes], deadline: float, clock: Callable[[], float]) -> DiskRead:
        """Begin to read pages; those that are being read already are waited for."""
        if new := [digest for digest in digests if digest not in self._reading]:
            self._begin_to_read(new)
        return DiskRead(self, digests, deadline, clock)

    def _read_ahead(self) -> None:
        """Read some of the pages that were used last, as long as host memory has free pages."""
        room, digests = min(READ_AHEAD_PAGES, self._host.free), list[bytes]()
        if not room:
            self._ahead.clear()
        while self._ahead and len(digests) < room:
            digest = self._ahead.popleft()
            if digest not in self._host and digest not in self._pool and digest in self._store:
                digests.append(digest)
        if digests:
            self._begin_to_read(digests)

    def _begin_to_read(self, digests: list[bytes]) -> None:
        pages = list(zip(digests, self._host.allocate(len(digests)), strict=True))
        self._reading.update(pages)
        self._store.read(pages)

    # Both ---------------------------------------------------------------------------------------------------------

    def seconds_to_step(self) -> float | None:
        """Return when the next step or look is due although there is no request; None: never."""
        self.settle()
        if self._waiting and self._room:
            return 0.0
        return POLL_SECONDS if self._waiting or self._writing or self._ahead or self._reading else None

    def settle(self) -> None:
        """Give back the host pages that have been written, and make those findable that have been read."""
        all_moved = self._store.take_moved()
        for moved in all_moved:
            if moved.was_read:
                self._settle_read(moved)
            else:
                self._settle_write(moved)
        if all_moved:
            self._report_marks()
        if self._ahead and not self._reading:
            self._read_ahead()

    def _report_marks(self) -> None:
        """Report which marks are on disk, and which are no more: files are removed when others are written."""
        gained, lost = self._store.take_marks()
        for digest in gained:
            self._pool.marks.add(digest)
        for digest in lost:
            self._pool.marks.remove(digest)

    def _settle_write(self, moved: MovedPage) -> None:
        host_page = self._writing.pop(moved.digest)
        self._count("stored_tokens" if moved.has_succeeded else "unstored_tokens", 1)
        is_borrowed = moved.digest in self._borrowed
        self._borrowed.discard(moved.digest)
        self._give_back(moved.digest, host_page, is_found=is_borrowed)
        if (chain := self._chains.pop(moved.digest, None)) is not None:
            self._store.touch(chain)  # written pages are newer than those before them, but the end is dropped first

    def _settle_read(self, moved: MovedPage) -> None:
        host_page = self._reading.pop(moved.digest)
        self._count("read_tokens" if moved.has_succeeded else "unreadable_tokens", 1)
        self._give_back(moved.digest, host_page, is_found=moved.has_succeeded)

    def _give_back(self, digest: bytes, host_page: int, *, is_found: bool) -> None:
        """Add a host page to the cache if it `is_found` there, otherwise release it."""
        if is_found and digest not in self._host and digest not in self._pool:
            rank = self._rank(digest)
            self._host.insert(digest, host_page, Rank.STANDARD if rank is None else rank)
        else:
            self._host.release([host_page])
