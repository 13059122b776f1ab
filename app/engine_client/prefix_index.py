"""Which engine has the longest beginning of a prompt in its cache, according to the marks that engines report."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from engine.prefixes import KEY_BYTES, MARK_PAGES, PrefixChanges, marks_of
from engine.types import Request

MAX_MARKS = 512  # of a prompt that are looked up: their digests take about 3 ms


class PrefixIndex:
    """Marks in the prefix cache of each member."""

    def __init__(self) -> None:
        self._keys: dict[int, set[bytes]] = {}
        self._page_size = 1

    def update(self, member: int, changes: PrefixChanges, page_size: int) -> None:
        """Apply what a member reports. page_size: tokens of its pages, the same in all members."""
        self._page_size = page_size
        if changes.is_whole:
            self._keys[member] = set()
        keys = self._keys.setdefault(member, set())
        keys.update(_split(changes.gained))
        keys.difference_update(_split(changes.lost))

    def forget(self, member: int) -> None:
        """Forget the marks of a member that has lost its engine."""
        self._keys.pop(member, None)

    def cached_tokens(self, request: Request) -> dict[int, int]:
        """Return the tokens of a request's prompt that each member has, rounded down to marks; of those with any."""
        if not any(self._keys.values()):
            return {}
        return self.tokens_of(self.marks(request.prompt, request.cache_salt))

    def marks(self, tokens: Sequence[int], salt: str) -> bytes:
        """Return the concatenated keys of the first marks of tokens, as `tokens_of` reads them."""
        return b"".join(marks_of(tokens, salt, self._page_size, MAX_MARKS))

    def tokens_of(self, marks: bytes) -> dict[int, int]:
        """Return the tokens that each member has of those with these marks; only of members with any.

        A cache loses the end of a prefix first, so the last mark that a member has is found by bisection.
        """
        tokens = MARK_PAGES * self._page_size
        depths = ((member, _depth(marks, keys)) for member, keys in self._keys.items())
        return {member: depth * tokens for member, depth in depths if depth}


def _depth(marks: bytes, keys: Collection[bytes]) -> int:
    """Return the number of leading marks that are among `keys`."""
    return bisect_left(range(len(marks) // KEY_BYTES), True, key=lambda at: _key(marks, at) not in keys)


def _split(keys: bytes) -> list[bytes]:
    return [_key(keys, at) for at in range(len(keys) // KEY_BYTES)]


def _key(keys: bytes, at: int) -> bytes:
    return keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]
