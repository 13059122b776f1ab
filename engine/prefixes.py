"""Names of prefixes of prompts: digests of pages, and the few of them by which an API process finds the engine whose
cache has a prefix.

Full pages are addressed by a hash chained over the prefix, as in vLLM's automatic prefix caching. The chain starts from
the owner's salt, so that one owner's prompts cannot be observed through another owner's cache-hit times. Every
`MARK_PAGES`th digest of a chain is a mark. Engines report the marks in their caches, shortened to `KEY_BYTES`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

MARK_PAGES = 4  # pages from one mark of a chain to the next
KEY_BYTES = 8  # of a reported mark; a collision sends a request to an engine without its prefix


def chain_start(salt: str) -> bytes:
    """Return the digest that precedes the first page of every prompt under `salt`."""
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def chain_next(previous: bytes, tokens: Sequence[int]) -> bytes:
    """Return the digest of a full page of `tokens` that follows the page with digest `previous`."""
    return hashlib.blake2b(previous + array("q", tokens).tobytes(), digest_size=16).digest()


def is_mark(index: int) -> bool:
    """Return whether the digest of full page `index` of a sequence is a mark."""
    return index % MARK_PAGES == MARK_PAGES - 1


def marks_of(prompt: Sequence[int], salt: str, page_size: int, limit: int) -> list[bytes]:
    """Return the keys of the first `limit` marks of a prompt."""
    digests = islice(digests_of(prompt, salt, page_size), limit * MARK_PAGES)
    return [digest[:KEY_BYTES] for index, digest in enumerate(digests) if is_mark(index)]


def digests_of(prompt: Sequence[int], salt: str, page_size: int) -> Iterator[bytes]:
    """Return the digests of the full pages of a prompt, lazily."""
    digest = chain_start(salt)
    for end in range(page_size, len(prompt) + 1, page_size):
        digest = chain_next(digest, prompt[end - page_size : end])
        yield digest


class PrefixChanges(msgspec.Struct, frozen=True, array_like=True):
    """Keys of marks that a cache has gained and lost, each concatenated. is_whole: those gained are all that it has."""

    gained: bytes
    lost: bytes
    is_whole: bool = False


class CachedMarks:
    """Marks of the pages of one cache, and their changes since they were last taken.

    A page may be in several places: on the device, in host memory, on disk.
    """

    def __init__(self) -> None:
        self._places: Counter[bytes] = Counter()  # by key
        self._changes: dict[bytes, bool] | None = None  # whether the cache has the key; None: they are not recorded

    def add(self, digest: bytes) -> None:
        """Record that a page can be found, in one more place, by a digest that is a mark."""
        self._places[digest[:KEY_BYTES]] += 1
        self._change(digest[:KEY_BYTES])

    def remove(self, digest: bytes) -> None:
        """Record that a page with a mark has left a place."""
        key = digest[:KEY_BYTES]
        self._places[key] -= 1
        if not self._places[key]:
            del self._places[key]
            self._change(key)

    def _change(self, key: bytes) -> None:
        if self._changes is not None:
            self._changes[key] = key in self._places

    def take_all(self) -> PrefixChanges:
        """Return all keys."""
        return PrefixChanges(b"".join(self._places), b"", True)

    def take_changes(self) -> PrefixChanges | None:
        """Return the changes since the last call; None if there are none, or it is the first."""
        changes, self._changes = self._changes, {}
        if not changes:
            return None
        gained = b"".join(key for key, has in changes.items() if has)
        return PrefixChanges(gained, b"".join(key for key, has in changes.items() if not has))

    def forget_changes(self) -> None:
        """Record no changes until they are taken again."""
        self._changes = None
