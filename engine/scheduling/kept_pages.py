"""Pages that sessions of one rank or ended answers keep, by owner, within a bound.

An owner has a cache salt: prompts with other salts share no pages with its own.

The bound is divided by max-min fairness: beyond it the owner that keeps the most gives up its least recently used
session. Each operation takes O(log n) in the number of owners.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedSet

from engine.scheduling.pages import Rank


@dataclass(eq=False, slots=True)
class Session:
    """Pages of one conversation, by digest. until: when it waits no longer for a tool, or loses half of its pages."""

    owner: str
    digests: list[bytes]
    rank: Rank
    until: float

    @property
    def tail(self) -> bytes:
        """Return the digest of its last page."""
        return self.digests[-1]


class Owned(Protocol):
    """Pages of an owner."""

    @property
    def owner(self) -> str:
        """Return the cache salt."""


Kept = TypeVar("Kept", bound=Owned)


class KeptPages(Generic[Kept]):
    """Sessions, and how many pages each owner keeps with them. A page of several sessions counts once."""

    def __init__(self, max_pages: int) -> None:
        self.max_pages = max_pages
        self.total = 0
        self._kept: dict[str, OrderedDict[Kept, None]] = {}  # by owner, least recently used first
        self._pages: dict[str, int] = {}  # by owner
        self._most: SortedSet[tuple[int, str]] = SortedSet()  # pages and owner

    @property
    def is_beyond_bound(self) -> bool:
        """Return whether a session has to be given up."""
        return self.total > self.max_pages

    def of(self, owner: str) -> int:
        """Return the pages that an owner keeps."""
        return self._pages.get(owner, 0)

    def add(self, session: Kept, pages: int) -> None:
        """Add a session. pages: those that no other session of the rank has."""
        self._kept.setdefault(session.owner, OrderedDict())[session] = None
        self._change(session.owner, pages)

    def remove(self, session: Kept, pages: int) -> None:
        """Remove a session. pages: those that no other session of the rank has."""
        del self._kept[session.owner][session]
        self._change(session.owner, -pages)

    def first_to_give_up(self) -> Kept:
        """Return the least recently used session of the owner that keeps the most pages."""
        _, owner = self._most[-1]
        return next(iter(self._kept[owner]))

    def latest(self, owner: str) -> Iterator[Kept]:
        """Return the sessions of an owner, the one that was used last first."""
        return reversed(self._kept.get(owner, {}))

    def _change(self, owner: str, pages: int) -> None:
        before = self.of(owner)
        self.total += pages
        self._most.discard((before, owner))
        if self._kept[owner]:
            self._pages[owner] = before + pages
            self._most.add((before + pages, owner))
        else:
            del self._kept[owner]
            self._pages.pop(owner, None)

    def check_integrity(self, sessions: set[Kept], pages: int) -> None:
        """Compare all counts with the sessions of the rank and their distinct pages. Raises `AssertionError`."""
        assert sessions == {session for owner in self._kept.values() for session in owner}
        assert self.total == pages == sum(self._pages.values()) and not self.is_beyond_bound
        assert self._pages.keys() == self._kept.keys()
        assert list(self._most) == sorted((count, owner) for owner, count in self._pages.items())
