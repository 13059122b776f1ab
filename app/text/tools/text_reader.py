"""TextReader: text that arrives in pieces, for parsers that are written as generators.

A parser's generator yields when it needs more text, so that its state is in its local variables and every decision
depends only on the text, not on how it was split. Read text is not kept, so that the work is linear in its length.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]  # yields when more text is needed; returns T

SPACE = re.compile(r"\s+")


class Literals:
    """Set of texts, of which the longest at a position is found without comparing all of them."""

    __slots__ = ("_lengths", "_sorted", "_texts", "max_length")

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        self._sorted = sorted(self._texts)
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        self.max_length = max(self._lengths, default=0)

    @property
    def first_characters(self) -> str:
        """Return the characters with which the texts begin, each once."""
        return "".join(sorted({text[0] for text in self._texts}))

    def longest(self, ahead: str) -> str:
        """Return the longest text with which `ahead` begins; empty if there is none."""
        return next((ahead[:length] for length in self._lengths if ahead[:length] in self._texts), "")

    def may_grow(self, ahead: str) -> bool:
        """Return whether a text is longer than `ahead` and begins with it."""
        at = bisect_right(self._sorted, ahead)
        return at < len(self._sorted) and self._sorted[at].startswith(ahead)


class TextReader:
    """Reader of text that arrives in pieces. sink: receives all text as it is read."""

    __slots__ = ("_at", "_text", "is_ended", "sink")

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._text = ""
        self._at = 0
        self.is_ended = False  # no more text will come
        self.sink = sink

    @property
    def is_empty(self) -> bool:
        """Return whether all text so far is read."""
        return self._at == len(self._text)

    def ends_within(self, text: str) -> bool:
        """Return whether the unread text is the beginning of `text`."""
        return text.startswith(self._text[self._at :])

    def may_continue(self, literals: Literals) -> bool:
        """Return whether the unread text is the beginning of one of `literals`."""
        return literals.may_grow(self._text[self._at :])

    def feed(self, text: str) -> None:
        """Add text at the end."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def take(self, length: int) -> str:
        """Read and return the next characters, at most `length`."""
        text = self._text[self._at : self._at + length]
        self._at += len(text)
        if text:
            self.sink(text)
        return text

    def take_match(self, pattern: re.Pattern[str], limit: int = sys.maxsize) -> str:
        """Read and return the text at the current position that matches `pattern`, at most `limit` characters; without
        waiting for more.
        """
        found = pattern.match(self._text, self._at, min(self._at + limit, sys.maxsize))
        return self.take(found.end() - self._at) if found else ""

    def peek(self, length: int = 1) -> Steps[str]:
        """Return the next `length` characters without reading them; fewer only at the end of the text."""
        while len(self._text) - self._at < length and not self.is_ended:
            yield
        return self._text[self._at : self._at + length]

    def find(self, literals: Literals) -> Steps[str]:
        """Return the longest of `literals` at the current position without reading it; empty if there is none."""
        while True:
            ahead = self._text[self._at : self._at + literals.max_length]
            if self.is_ended or not literals.may_grow(ahead):
                return literals.longest(ahead)
            yield

    def accept(self, literals: Literals) -> Steps[str]:
        """Read and return the longest of `literals` at the current position; empty if there is none."""
        return self.take(len((yield from self.find(literals))))

    def skip_space(self) -> Steps[str]:
        """Read white space. Return the next character without reading it; empty at the end of the text."""
        while True:
            self.take_match(SPACE)
            if not self.is_empty or self.is_ended:
                return (yield from self.peek())
            yield

    def read_while(self, pattern: re.Pattern[str], limit: int) -> Steps[str]:
        """Read and return text as long as `pattern` matches; at most `limit` + 1 characters, which shows that it is too
        long.
        """
        pieces, length = [], 0
        while length <= limit:
            piece = self.take_match(pattern, limit + 1 - length)
            pieces.append(piece)
            length += len(piece)
            if not self.is_empty or self.is_ended:
                break
            yield
        return "".join(pieces)
