"""Constraints of one sequence: a grammar, and a limit of reasoning tokens around it."""

from __future__ import annotations

import ctypes
import enum

import numpy as np
from llguidance import LLMatcher

from engine.constraints.grammars import error_message
from engine.scheduling.constraint import Constraint
from engine.types import ReasoningLimit

MAX_LEADING_BYTES = 256  # bytes of white space before a reasoning block


class GrammarConstraint:
    """Tokens that continue a text of a grammar."""

    __slots__ = ("_matcher",)

    is_active = True

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def error(self) -> str:
        """Return the matcher's error, such as a state that is too complex."""
        return error_message(self._matcher) if self._matcher.is_error() else ""

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token. A token that the grammar does not allow leaves the matcher in an error state."""
        self._matcher.consume_token(token_id)

    def write_mask(self, address: int, size: int) -> None:
        """Write the allowed tokens; none if the matcher is in an error state."""
        if self._matcher.is_error():
            ctypes.memset(address, 0, size)
            return
        self._matcher.unsafe_compute_mask_ptr(address, size)
        if self._matcher.is_error():
            ctypes.memset(address, 0, size)


class _Stage(enum.Enum):
    BEFORE = enum.auto()  # an opening tag may come
    OPEN = enum.auto()
    CLOSING = enum.auto()  # the limit is used up: the closing tokens are forced
    DONE = enum.auto()


class ReasoningConstraint:
    """Limit of the tokens in a reasoning block, after which the tokens that close it are forced.

    Tokens of the tags do not count. `inner` is the constraint of the whole text, if there is one.
    """

    __slots__ = ("_forced", "_inner", "_limit", "_stage", "_tail", "_tokens", "_used")

    def __init__(self, limit: ReasoningLimit, tokens: tuple[bytes, ...], inner: Constraint | None) -> None:
        self._limit = limit
        self._tokens = tokens
        self._inner = inner
        self._tail = b""  # bytes in which a tag may begin
        self._used = 0  # tokens in the block
        self._forced = 0  # closing tokens so far
        self._stage = _Stage.BEFORE if limit.open_tag else _Stage.OPEN
        self._check_limit()

    @property
    def is_active(self) -> bool:
        """Return whether a closing token is due, or the inner constraint is active."""
        return self._stage is _Stage.CLOSING or (self._inner is not None and self._inner.is_active)

    @property
    def error(self) -> str:
        """Return the error of the inner constraint."""
        return self._inner.error if self._inner is not None else ""

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token."""
        if self._inner is not None:
            self._inner.consume(token_id)
        match self._stage:
            case _Stage.BEFORE:
                self._look_for_opening(token_id)
            case _Stage.OPEN:
                close_tag = self._limit.close_tag
                self._tail = self._end_of_tail(len(close_tag) - 1) + self._bytes(token_id)
                self._used += 1
                if close_tag in self._tail:
                    self._stage = _Stage.DONE
            case _Stage.CLOSING:
                self._forced += 1
                if self._forced == len(self._limit.closing_ids):
                    self._stage = _Stage.DONE
        self._check_limit()

    def write_mask(self, address: int, size: int) -> None:
        """Write the allowed tokens: the next closing token if it is due, else those of the inner constraint."""
        if self._stage is not _Stage.CLOSING:
            assert self._inner is not None
            self._inner.write_mask(address, size)
            return
        token_id = self._limit.closing_ids[self._forced]
        words = np.ctypeslib.as_array((ctypes.c_uint32 * (size // 4)).from_address(address))
        words[:] = 0
        words[token_id // 32] = 1 << (token_id % 32)

    def _bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, or its mark."""
        return self._limit.marks.get(token_id) or self._tokens[token_id]

    def _end_of_tail(self, size: int) -> bytes:
        """Return the last `size` bytes in which a tag may begin."""
        return self._tail[-size:] if size else b""

    def _look_for_opening(self, token_id: int) -> None:
        self._tail += self._bytes(token_id)
        begun = self._tail.lstrip()
        if begun.startswith(self._limit.open_tag):
            self._tail = begun[len(self._limit.open_tag) :]
            self._stage = _Stage.OPEN
        elif len(self._tail) - len(begun) > MAX_LEADING_BYTES or not self._limit.open_tag.startswith(begun):
            self._stage = _Stage.DONE  # the answer has no reasoning block

    def _check_limit(self) -> None:
        if self._stage is _Stage.OPEN and self._used >= self._limit.max_tokens and not self._closes:
            self._stage = _Stage.CLOSING

    @property
    def _closes(self) -> bool:
        """Return whether the last bytes begin a closing tag, which is not interrupted."""
        close_tag = self._limit.close_tag
        return any(self._tail.endswith(close_tag[:length]) for length in range(1, len(close_tag)))
