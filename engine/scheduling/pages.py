"""Page accounting for KV memory: which pages are held, cached or free.

Owns all reference counts. Handles page numbers and content digests only: no tensors, no tokens, no requests.

A page is in exactly one of three states, and free + cached + held == total after every call:

    free    its content does not matter
    cached  unreferenced, but its content can be found by digest and reused
    held    referenced by one or more sequences

Full pages are addressed by the digests of `engine.prefixes`.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from engine.errors import IntegrityError
from engine.prefixes import CachedMarks


class Rank(enum.IntEnum):
    """Order in which cached pages are evicted, lowest first; inside a rank the least recently used goes first."""

    FLEX = 0  # of the batch class
    STANDARD = 1
    SESSION = 2  # of a conversation that is expected to go on
    WAITING = 3  # of a conversation that waits for the result of a tool, within its bound


class PagePool:
    """Reference counts and prefix index of pages 0..total-1 of the device's KV cache."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_touched = 0  # pages from this index on have never been held
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._digest: list[bytes | None] = [None] * total
        self._by_digest: dict[bytes, int] = {}
        # Least recently used first, by rank.
        self._cached: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in Rank)
        self.cached = 0  # unreferenced pages that a lookup can still find
        self._rank = [Rank.FLEX] * total  # of the last release, raised by sessions
        self.marks = CachedMarks()  # also of host memory and disk
        self._marked: set[int] = set()
        # Called with a cached page that is about to lose its content.
        self.on_evict: Callable[[int, bytes, Rank], None] = lambda page, digest, rank: None

    @property
    def free(self) -> int:
        """Return the number of free pages."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Return the number of pages that at least one sequence references."""
        return self.total - self.available

    @property
    def available(self) -> int:
        """Return the number of pages that `allocate` can provide: free pages, then cached pages."""
        return len(self._free) + self.cached

    @property
    def spare(self) -> int:
        """Return the number of pages that `allocate` provides before it evicts one of a conversation's."""
        return len(self._free) + len(self._cached[Rank.FLEX]) + len(self._cached[Rank.STANDARD])

    def is_mark(self, page: int) -> bool:
        """Return whether the digest of `page` is a mark."""
        return page in self._marked

    def references(self, page: int) -> int:
        """Return the reference count of `page`."""
        return self._references[page]

    def allocate(self) -> int:
        """Take one page; if none is free, evict the least recently used cached page of the lowest rank.

        Callers check `available` first; calling this with no page available is a bug.
        """
        if self._free:
            page = self._free.pop()
        else:
            page = self._evict()
        self.num_touched = max(self.num_touched, page + 1)
        self._references[page] = 1
        return page

    def acquire(self, page: int) -> None:
        """Add a reference to a page that is held or cached."""
        if self._references[page] == 0:
            cached = self._cached[self._rank[page]]
            if page not in cached:
                raise IntegrityError(f"acquire() was called for page {page}, which is free")
            del cached[page]
            self.cached -= 1
        self._references[page] += 1

    def release(self, pages: Iterable[int], rank: Rank) -> None:
        """Drop one reference to each page. A page keeps a higher rank that it has.

        Pass a sequence's last pages first: pages released first are evicted first, and a prefix is worth more than its
        continuation.
        """
        for page in pages:
            if self._references[page] < 1:
                raise IntegrityError(f"release() was called for page {page}, which has no references")
            self._references[page] -= 1
            self._rank[page] = max(self._rank[page], rank)
            if self._references[page] == 0:
                if self._digest[page] is None:
                    self._make_free(page)
                else:
                    self._cached[self._rank[page]][page] = None
                    self.cached += 1

    def set_rank(self, digest: bytes, rank: Rank, *, oldest: bool = False) -> None:
        """Change the rank of a page; do nothing if none has `digest`.

        It becomes the page of its rank that was used last, or that was not used for the longest time.
        """
        page = self._by_digest.get(digest)
        if page is None or self._rank[page] is rank:
            return
        cached = self._cached[self._rank[page]]
        self._rank[page] = rank
        if page in cached:
            del cached[page]
            self._cached[rank][page] = None
            self._cached[rank].move_to_end(page, last=not oldest)

    def publish(self, page: int, digest: bytes, *, is_mark: bool = False) -> None:
        """Make a held, completely written page findable by `digest`, which may be a mark.

        If several pages have the same digest, the first one published is kept.
        """
        if self._references[page] < 1:
            raise IntegrityError(f"publish() was called for page {page}, which has no references")
        if self._digest[page] is None and digest not in self._by_digest:
            self._digest[page] = digest
            self._by_digest[digest] = page
            if is_mark:
                self._marked.add(page)
                self.marks.add(digest)

    def __contains__(self, digest: object) -> bool:
        return digest in self._by_digest

    def lookup(self, digests: Iterable[bytes]) -> list[int]:
        """Return the pages of the longest cached prefix of `digests`, without adding references."""
        pages: list[int] = []
        for digest in digests:
            page = self._by_digest.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def forget_cached(self) -> None:
        """Free every cached page, so that its content can no longer be found."""
        for cached in self._cached:
            for page in cached:
                self._forget(page)
                self._make_free(page)
            cached.clear()
        self.cached = 0

    def _evict(self) -> int:
        for cached in self._cached:
            if cached:
                page, _ = cached.popitem(last=False)
                self.cached -= 1
                digest = self._digest[page]
                assert digest is not None
                self.on_evict(page, digest, self._rank[page])
                self._forget(page)
                return page
        raise IntegrityError(f"allocate() was called while none of {self.total} pages is available")

    def _make_free(self, page: int) -> None:
        self._rank[page] = Rank.FLEX
        self._free.append(page)

    def _forget(self, page: int) -> None:
        digest = self._digest[page]
        self._rank[page] = Rank.FLEX
        if digest is not None:
            del self._by_digest[digest]
            self._digest[page] = None
            if page in self._marked:
                self._marked.remove(page)
                self.marks.remove(digest)

    def ranks(self) -> dict[bytes, Rank]:
        """Return the rank of each page that a lookup can find."""
        return {digest: self._rank[page] for digest, page in self._by_digest.items()}

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Compare reference counts with `holders`, the page tables of all sequences.

        Raises `IntegrityError` with the differing numbers.
        """
        expected = Counter(page for table in holders for page in table)
        for page in range(self.total):
            if self._references[page] != expected[page]:
                raise IntegrityError(
                    f"page {page} has {self._references[page]} references, "
                    f"but occurs {expected[page]} times in the page tables"
                )
        free, cached = set(self._free), {page for pages in self._cached for page in pages}
        if len(free) != len(self._free) or free & cached:
            raise IntegrityError(f"pages are free twice, or both free and cached: {sorted(free & cached)}")
        idle = {page for page in range(self.total) if self._references[page] == 0}
        if any(self._rank[page] is not rank for rank in Rank for page in self._cached[rank]):
            raise IntegrityError("a cached page is listed under another rank")
        if free | cached != idle or len(cached) != self.cached:
            raise IntegrityError(f"free {len(free)} + cached {len(cached)} + held {self.held} != total {self.total}")
        for digest, page in self._by_digest.items():
            if self._digest[page] != digest:
                raise IntegrityError(f"digest {digest.hex()} maps to page {page} with digest {self._digest[page]!r}")
        if any(self._digest[page] is not None for page in free):
            raise IntegrityError("a free page still has a digest")


class HostPool:
    """Pages of host memory: of swapped-out sequences, and of sessions, when their device pages are evicted.

    Those of sessions are found by digest, and give way to sequences. Nothing is shared.
    """

    def __init__(self, total: int, marks: CachedMarks) -> None:
        self.total = total
        self._marks = marks
        self._marked: set[bytes] = set()
        self._free = list(range(total - 1, -1, -1))
        self._cached: tuple[OrderedDict[bytes, int], ...] = tuple(OrderedDict() for _ in Rank)  # as in `PagePool`
        self._rank: dict[bytes, Rank] = {}  # of the pages in `_cached`
        # Called with a page of a session that gives way.
        self.on_evict: Callable[[int, bytes], None] = lambda page, digest: None

    @property
    def used(self) -> int:
        """Return the number of host pages that contain a preempted sequence's KV."""
        return self.total - self.available

    @property
    def cached(self) -> int:
        """Return the number of host pages that contain a session's KV."""
        return len(self._rank)

    @property
    def free(self) -> int:
        """Return the number of host pages whose content does not matter."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Return the number of host pages that `allocate` can provide."""
        return len(self._free) + len(self._rank)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, if needed from sessions. Callers check `available` first."""
        if count > self.available:
            raise IntegrityError(
                f"allocate({count}) was called while {self.available} of {self.total} host pages are available"
            )
        return [self._free.pop() if self._free else self._evict(max(Rank)) for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back."""
        self._free.extend(pages)

    def store(self, digest: bytes, rank: Rank, *, is_mark: bool = False) -> int | None:
        """Return the page to which a session's page is copied; None if it is there, or has no room for its rank."""
        if digest in self._rank:
            self.set_rank(digest, rank)
            return None
        page = self._free.pop() if self._free else self._evict(rank)
        if page < 0:
            return None
        self.insert(digest, page, rank, is_mark=is_mark)
        return page

    def insert(self, digest: bytes, page: int, rank: Rank, *, is_mark: bool = False) -> None:
        """Add an allocated page, with the content of `digest`, to the cache."""
        self._rank[digest] = rank
        self._cached[rank][digest] = page
        if is_mark:
            self._marked.add(digest)
            self._marks.add(digest)

    def __contains__(self, digest: object) -> bool:
        return digest in self._rank

    def take(self, digest: bytes) -> int:
        """Take the page with `digest` from the cache; it belongs to the caller."""
        self._forget_mark(digest)
        return self._cached[self._rank.pop(digest)].pop(digest)

    def _forget_mark(self, digest: bytes) -> None:
        if digest in self._marked:
            self._marked.remove(digest)
            self._marks.remove(digest)

    def set_rank(self, digest: bytes, rank: Rank, *, oldest: bool = False) -> None:
        """Change the rank of a page, as `PagePool.set_rank` does."""
        if digest in self._rank:
            page = self._cached[self._rank[digest]].pop(digest)
            self._rank[digest] = rank
            self._cached[rank][digest] = page
            self._cached[rank].move_to_end(digest, last=not oldest)

    def _evict(self, rank: Rank) -> int:
        """Return the page of the lowest rank, up to `rank`, that was used least recently; -1 if there is none."""
        for cached in self._cached[: rank + 1]:
            if cached:
                digest, page = cached.popitem(last=False)
                del self._rank[digest]
                self._forget_mark(digest)
                self.on_evict(page, digest)
                return page
        return -1

    def ranks(self) -> dict[bytes, Rank]:
        """Return the rank of each page of a session."""
        return dict(self._rank)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Raise `IntegrityError` unless every host page is free, cached, or in exactly one sequence's list."""
        cached = [page for pages in self._cached for page in pages.values()]
        pages = [*self._free, *cached, *(page for table in holders for page in table)]
        if sorted(pages) != list(range(self.total)) or len(cached) != len(self._rank):
            raise IntegrityError(
                f"host pages are inconsistent: {len(self._free)} of {self.total} are free, free and held: {pages[:32]}"
            )
