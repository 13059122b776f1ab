"""Page accounting for KV memory: which pages are held, cached or free.

Owns all reference counts. Handles page numbers and content digests only: no tensors, no tokens, no requests.

A page is in exactly one of three states, and free + cached + held == total after every call:

    free    its content does not matter
    cached  unreferenced, but its content can be found by digest and reused
    held    referenced by one or more sequences

Full pages are addressed by the digests of `engine.prefixes`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from engine.errors import IntegrityError
from engine.prefixes import CachedMarks


class PagePool:
    """Reference counts and prefix index of pages 0..total-1 of the device's KV cache."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_touched = 0  # pages from this index on have never been held
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._digest: list[bytes | None] = [None] * total
        self._by_digest: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self.marks = CachedMarks()

    @property
    def free(self) -> int:
        """Return the number of free pages."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Return the number of unreferenced pages that a lookup can still find."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Return the number of pages that at least one sequence references."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Return the number of pages that `allocate` can provide: free pages, then cached pages."""
        return len(self._free) + len(self._cached)

    def references(self, page: int) -> int:
        """Return the reference count of `page`."""
        return self._references[page]

    def allocate(self) -> int:
        """Take one page; if none is free, evict the least recently used cached page.

        Callers check `available` first; calling this with no page available is a bug.
        """
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        else:
            raise IntegrityError(f"allocate() was called while none of {self.total} pages is available")
        self.num_touched = max(self.num_touched, page + 1)
        self._references[page] = 1
        return page

    def acquire(self, page: int) -> None:
        """Add a reference to a page that is held or cached."""
        if self._references[page] == 0:
            if page not in self._cached:
                raise IntegrityError(f"acquire() was called for page {page}, which is free")
            del self._cached[page]
        self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page.

        Pass a sequence's last pages first: pages released first are evicted first, and a prefix is worth more than its
        continuation.
        """
        for page in pages:
            if self._references[page] < 1:
                raise IntegrityError(f"release() was called for page {page}, which has no references")
            self._references[page] -= 1
            if self._references[page] == 0:
                if self._digest[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

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
                self.marks.add(page, digest)

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
        while self._cached:
            page, _ = self._cached.popitem()
            self._forget(page)
            self._free.append(page)

    def _forget(self, page: int) -> None:
        digest = self._digest[page]
        if digest is not None:
            del self._by_digest[digest]
            self._digest[page] = None
            self.marks.remove(page)

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
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free) or free & cached:
            raise IntegrityError(f"pages are free twice, or both free and cached: {sorted(free & cached)}")
        idle = {page for page in range(self.total) if self._references[page] == 0}
        if free | cached != idle:
            raise IntegrityError(f"free {len(free)} + cached {len(cached)} + held {self.held} != total {self.total}")
        for digest, page in self._by_digest.items():
            if self._digest[page] != digest:
                raise IntegrityError(f"digest {digest.hex()} maps to page {page} with digest {self._digest[page]!r}")
        if any(self._digest[page] is not None for page in free):
            raise IntegrityError("a free page still has a digest")


class HostPool:
    """Pages of host memory for swapped-out sequences, without sharing or caching."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def used(self) -> int:
        """Return the number of host pages that contain a preempted sequence's KV."""
        return self.total - len(self._free)

    @property
    def available(self) -> int:
        """Return the number of host pages that `allocate` can provide."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. Callers check `available` first."""
        if count > len(self._free):
            raise IntegrityError(
                f"allocate({count}) was called while {len(self._free)} of {self.total} host pages are available"
            )
        return [self._free.pop() for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back."""
        self._free.extend(pages)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Raise `IntegrityError` unless every host page is either free or in exactly one sequence's list."""
        pages = [*self._free, *(page for table in holders for page in table)]
        if sorted(pages) != list(range(self.total)):
            raise IntegrityError(
                f"host pages are inconsistent: {len(self._free)} of {self.total} are free, free and held: {pages[:32]}"
            )
