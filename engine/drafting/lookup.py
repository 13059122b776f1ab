"""Drafts by lookup: what followed the last tokens where they stood before, in the prompt or the answer.

Prompt lookup decoding (Saxena, 2023) without a limit on the distance. An answer that edits, quotes or repeats its
prompt is guessed almost in full; others seldom have a match of several tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.drafting.note import GRAMMAR, LOOKUP

MAX_MATCH = 16  # tokens that are compared before the last one
MAX_CANDIDATES = 16  # latest places with the last two tokens
ROOM = 1024  # tokens of an answer
HASH = (0x9E3779B1, 0x85EBCA6B)
LONG_MATCH = 4  # tokens


class Draft(NamedTuple):
    """Guess of the next tokens.

    match: number of last tokens that stood before the guessed ones too. source: of the guess, by which `DraftNote`
    counts it. is_forced: of each token, whether a constraint allows no other text in its place; empty if there is none.
    """

    tokens: tuple[int, ...]
    match: int
    source: str = LOOKUP
    is_forced: tuple[bool, ...] = ()

    def source_of(self, index: int) -> str:
        """Return the source of a token."""
        return GRAMMAR if self.is_forced and self.is_forced[index] else self.source


NO_DRAFT = Draft((), 0)


class PairIndex:
    """Places of each pair of tokens in a growing text. Takes 8 to 12 bytes a token.

    Each place has the last one before it with the same hash of its pair: a chain, which begins at `_latest`.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        """tokens: of the text; its owner appends to them. Nothing is indexed yet.

        The table has room for the present tokens and some more; beyond it, chains contain other pairs too.
        """
        self._tokens = tokens
        self._earlier = array("i", [-1])  # by place of the second token of a pair
        self._latest = array("i", [-1]) * (1 << (len(tokens) + ROOM).bit_length())

    @property
    def num_missing(self) -> int:
        """Return the number of tokens that are not indexed yet."""
        return len(self._tokens) - len(self._earlier)

    @property
    def room(self) -> int:
        """Return the length of a text beyond which chains contain many other pairs."""
        return len(self._latest)

    def index(self, limit: int) -> int:
        """Index up to `limit` further tokens, and return how many."""
        tokens, earlier, latest = self._tokens, self._earlier, self._latest
        first = len(earlier)
        end = min(len(tokens), first + limit)
        mask = len(latest) - 1
        before = tokens[first - 1]
        for place in range(first, end):
            token = tokens[place]
            at = (before * HASH[0] ^ token * HASH[1]) & mask
            earlier.append(latest[at])
            latest[at] = place
            before = token
        return end - first

    def places(self, before: int, token: int, limit: int) -> Iterator[int]:
        """Yield up to `limit` indexed places of a pair, the latest first, and of others with the same hash."""
        place = self._latest[(before * HASH[0] ^ token * HASH[1]) & (len(self._latest) - 1)]
        while place > 0 and limit > 0:
            yield place
            place, limit = self._earlier[place], limit - 1


class Lookup(PairIndex):
    """Drafts of one sequence from its own tokens."""

    _tokens: list[int]

    def draft(self, limit: int) -> Draft:
        """Return the `limit` tokens that followed the longest match, of several the latest; a period goes on."""
        tokens, earlier = self._tokens, self._earlier
        last = len(tokens) - 1
        if last < 2 or self.num_missing:
            return NO_DRAFT
        best, longest = -1, 1
        place = earlier[last]
        for _ in range(MAX_CANDIDATES):
            if place < 1:
                break
            match = 0
            while match < MAX_MATCH and match <= place and tokens[place - match] == tokens[last - match]:
                match += 1
            if match > longest:
                best, longest = place, match
                if match == MAX_MATCH:
                    break
            place = earlier[place]
        if best < 0:
            return NO_DRAFT
        draft = tokens[best + 1 : best + 1 + limit]
        while len(draft) < limit:
            draft.append(draft[best - last])
        return Draft(tuple(draft), longest)
