"""Index of stored runs of pages: by digest, in the order of their use, and the marks among their digests.

Pure Python over names and numbers. Not safe for threads: `DiskStore` guards it by its lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from sortedcontainers import SortedDict

from engine.prefixes import is_mark


@dataclass(eq=False)
class StoredRun:
    """A file. size: in bytes. first: index of the first page in its chain. last_use: in nanoseconds since 1970, and
    different for each run; from `RunIndex.next_use`, or of the file if it was found.
    """

    name: str
    size: int
    first: int
    digests: tuple[bytes, ...]
    last_use: int


class RunIndex:
    """Stored runs. bytes: their size together."""

    def __init__(self) -> None:
        self.bytes = 0
        self._by_digest: dict[bytes, StoredRun] = {}
        self._by_use: SortedDict[int, StoredRun] = SortedDict()
        self._used: set[StoredRun] = set()  # since the last call of `take_used`
        self._marks: dict[bytes, bool] = {}  # whether one was gained or lost since the last call of `take_marks`
        self._newest = 0

    @property
    def num_runs(self) -> int:
        """Return the number of runs."""
        return len(self._by_use)

    @property
    def num_pages(self) -> int:
        """Return the number of pages that can be found."""
        return len(self._by_digest)

    def __contains__(self, digest: object) -> bool:
        return digest in self._by_digest

    def latest(self, limit: int) -> list[bytes]:
        """Return the pages of the runs that were used last: of a chain, its beginning first."""
        digests = chain.from_iterable(run.digests for run in reversed(self._by_use.values()))
        return list(islice(digests, limit))

    def get(self, digest: bytes) -> StoredRun | None:
        """Return the run that has a page."""
        return self._by_digest.get(digest)

    def oldest(self) -> StoredRun | None:
        """Return the run that was not used for the longest time."""
        return self._by_use.peekitem(0)[1] if self._by_use else None

    def next_use(self, now: int) -> int:
        """Return the moment of a use, which is `now` or, if the clock is behind, just after the last one."""
        self._newest = max(now, self._newest + 1)
        return self._newest

    def add(self, run: StoredRun) -> None:
        """Add a run. Its pages are found in it from now on, those of an older run included."""
        while run.last_use in self._by_use:  # two files that were found have the same time
            run.last_use += 1
        self._newest = max(self._newest, run.last_use)
        self._by_use[run.last_use] = run
        self.bytes += run.size
        for place, digest in enumerate(run.digests):
            if digest not in self._by_digest and is_mark(run.first + place):
                self._change_mark(digest, True)
            self._by_digest[digest] = run

    def remove(self, run: StoredRun) -> None:
        """Remove a run; do nothing if it has been removed."""
        if self._by_use.get(run.last_use) is not run:
            return
        del self._by_use[run.last_use]
        self._used.discard(run)
        self.bytes -= run.size
        for place, digest in enumerate(run.digests):
            if self._by_digest.get(digest) is run:
                del self._by_digest[digest]
                if is_mark(run.first + place):
                    self._change_mark(digest, False)

    def touch(self, digests: Sequence[bytes], now: int) -> None:
        """Note the use of a chain's pages, from its end to its beginning."""
        touched = None
        for digest in reversed(digests):
            run = self._by_digest.get(digest)
            if run is None or run is touched:
                continue
            touched = run
            del self._by_use[run.last_use]
            run.last_use = self.next_use(now)
            self._by_use[run.last_use] = run
            self._used.add(run)

    def take_used(self) -> list[tuple[str, int]]:
        """Return name and last use of each run that was touched since the last call."""
        used, self._used = self._used, set()
        return [(run.name, run.last_use) for run in used]

    def take_marks(self) -> tuple[list[bytes], list[bytes]]:
        """Return the digests of marks that were gained and lost since the last call; at the first call all marks."""
        changes, self._marks = self._marks, {}
        gained = [digest for digest, has in changes.items() if has]
        return gained, [digest for digest, has in changes.items() if not has]

    def _change_mark(self, digest: bytes, has: bool) -> None:
        if self._marks.pop(digest, has) is has:  # the opposite change cancels one that was not taken yet
            self._marks[digest] = has
