"""The books of KV memory: who holds which page, which pages are remembered, which are free.

Owns every reference count. Knows page numbers and content digests only: no tensors, no tokens, no requests.

A page is in exactly one of three states, and free + cached + held == total after every call:

    free    nothing in it matters
    cached  nobody holds it, but its content is known by digest and may be taken up again
    held    its reference count says how many sequences point to it

Content addressing of full pages by a hash chained over the prefix follows vLLM's automatic prefix caching; the chain
starts from the owner's salt, so that one owner's prompts can never be observed through another's hit times.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from engine.errors import IntegrityError


def chain_start(salt: str) -> bytes:
    """The digest that precedes the first page of every prompt under `salt`."""
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def chain_next(previous: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a full page of `tokens` that follows the page with digest `previous`."""
    return hashlib.blake2b(previous + array("q", tokens).tobytes(), digest_size=16).digest()


class PagePool:
    """Pages 0..total-1 of the device's KV cache."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.touched = 0  # pages from this one on have never been held
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._digest: list[bytes | None] = [None] * total
        self._by_digest: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def free(self) -> int:
        """Pages whose content does not matter."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that nobody holds and a lookup may still find."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Pages that at least one sequence points to."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Pages that `allocate` can give: the free ones, then the cached ones."""
        return len(self._free) + len(self._cached)

    def references(self, page: int) -> int:
        """How many holders `page` has."""
        return self._references[page]

    def allocate(self) -> int:
        """Take one page, forgetting the least recently used cached one if none is free.

        Callers look at `available` first; running dry here is a bug.
        """
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        else:
            raise IntegrityError(f"allocate() with none of {self.total} pages available")
        self.touched = max(self.touched, page + 1)
        self._references[page] = 1
        return page

    def acquire(self, page: int) -> None:
        """Point one more holder to a page that is held or cached."""
        if self._references[page] == 0:
            if page not in self._cached:
                raise IntegrityError(f"acquire() of free page {page}")
            del self._cached[page]
        self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page. Pass a sequence's tail first: what is released first is forgotten first,
        and a prefix is worth more than what follows it."""
        for page in pages:
            if self._references[page] < 1:
                raise IntegrityError(f"release() of page {page}, which nobody holds")
            self._references[page] -= 1
            if self._references[page] == 0:
                if self._digest[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def publish(self, page: int, digest: bytes) -> None:
        """Make a held, completely written page findable. The first page with a digest stays the one that is found."""
        if self._references[page] < 1:
            raise IntegrityError(f"publish() of page {page}, which nobody holds")
        if self._digest[page] is None and digest not in self._by_digest:
            self._digest[page] = digest
            self._by_digest[digest] = page

    def lookup(self, digests: Iterable[bytes]) -> list[int]:
        """The pages of the longest known prefix of `digests`. Takes no reference."""
        pages: list[int] = []
        for digest in digests:
            page = self._by_digest.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def forget_cached(self) -> None:
        """Free every cached page (its content can no longer be found)."""
        while self._cached:
            page, _ = self._cached.popitem()
            self._forget(page)
            self._free.append(page)

    def _forget(self, page: int) -> None:
        digest = self._digest[page]
        if digest is not None:
            del self._by_digest[digest]
            self._digest[page] = None

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Compare the books with `holders`, the page tables of all sequences. Raises `IntegrityError` with numbers."""
        expected = Counter(page for table in holders for page in table)
        for page in range(self.total):
            if self._references[page] != expected[page]:
                raise IntegrityError(
                    f"page {page}: {self._references[page]} references, {expected[page]} in the page tables"
                )
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free) or free & cached:
            raise IntegrityError(f"a page is free twice, or free and cached: {sorted(free & cached)}")
        idle = {page for page in range(self.total) if self._references[page] == 0}
        if free | cached != idle:
            raise IntegrityError(f"free {len(free)} + cached {len(cached)} + held {self.held} != total {self.total}")
        for digest, page in self._by_digest.items():
            if self._digest[page] != digest:
                raise IntegrityError(f"digest {digest.hex()} finds page {page}, which carries {self._digest[page]!r}")
        if any(self._digest[page] is not None for page in free):
            raise IntegrityError("a free page still carries a digest")


class HostPool:
    """Pages of host memory that hold swapped-out sequences. No sharing, no remembering."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    @property
    def used(self) -> int:
        """Host pages that hold a paused sequence's KV."""
        return self.total - len(self._free)

    @property
    def available(self) -> int:
        """Host pages that `allocate` can give."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. Callers look at `available` first."""
        if count > len(self._free):
            raise IntegrityError(f"allocate({count}) with {len(self._free)} of {self.total} host pages available")
        return [self._free.pop() for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back."""
        self._free.extend(pages)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Every host page is either free or in exactly one sequence's list."""
        pages = [*self._free, *(page for table in holders for page in table)]
        if sorted(pages) != list(range(self.total)):
            raise IntegrityError(f"host pages do not balance: {len(self._free)} free of {self.total}, {pages[:32]}")
