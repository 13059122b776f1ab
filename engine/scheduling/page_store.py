"""Interface of a storage that keeps pages of sessions when the process ends, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class PageRun(NamedTuple):
    """Consecutive pages of one chain of digests, which are written together.

    first: index of the first page in its chain. host_pages: that contain them, one for each digest.
    """

    first: int
    digests: tuple[bytes, ...]
    host_pages: tuple[int, ...]


class MovedPage(NamedTuple):
    """Page that was written or read, or could not be."""

    digest: bytes
    host_page: int
    was_read: bool
    has_succeeded: bool


class PageStore(Protocol):
    """Pages by digest. Calls return at once: another thread moves the pages, and never fails.

    A host page that was passed to `write` or `read` belongs to the store until `take_moved` returns it.
    """

    def __contains__(self, digest: object) -> bool:
        """Return whether a page can be read."""

    def __len__(self) -> int:
        """Return the number of pages that can be read."""

    def latest(self, limit: int) -> list[bytes]:
        """Return the pages that were used last, those of a chain in its order."""

    def touch(self, digests: Sequence[bytes]) -> None:
        """Note that the pages of a chain, given in its order, are in use; unknown ones are ignored.

        What was not used for the longest time is dropped first, and of a chain its end.
        """

    def write(self, run: PageRun, wait: Callable[[], None]) -> None:
        """Begin to write pages. wait: blocks until their contents are in host memory; called on the other thread."""

    def read(self, pages: Sequence[tuple[bytes, int]]) -> None:
        """Begin to read pages, each by its digest into a host page; before all that is waiting to be written."""

    def take_moved(self) -> list[MovedPage]:
        """Return the pages that were moved since the last call."""

    def take_marks(self) -> tuple[list[bytes], list[bytes]]:
        """Return the digests of marks that were gained and lost since the last call; at first all that there are."""

    def read_seconds(self, pages: int) -> float:
        """Return the expected seconds for reading pages, from those that were read before."""
