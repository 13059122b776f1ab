"""Constraints of one sequence: a grammar, and a limit of reasoning tokens around it."""

from __future__ import annotations

import ctypes
import enum
import logging
import time

import numpy as np
from llguidance import LLMatcher

from engine.constraints.grammars import TOO_EXPENSIVE, GrammarTokenizer, error_message
from engine.constraints.mask_costs import MaskCosts
from engine.constraints.mask_threads import MaskThreads
from engine.scheduling.constraint import Constraint, ConstraintFailure
from engine.types import ReasoningLimit

log = logging.getLogger(__name__)

MAX_LEADING_BYTES = 256  # of white space before a reasoning block


class _Mask(enum.Enum):
    OUTDATED = enum.auto()
    PENDING = enum.auto()
    READY = enum.auto()


class Grammar:
    """Compiled grammar, and whether masks of its texts have taken long lately."""

    def __init__(self, matcher: LLMatcher, tokenizer: GrammarTokenizer) -> None:
        """matcher: at the beginning; it is never advanced."""
        self.matcher = matcher
        self.tokenizer = tokenizer
        self.is_slow = False


class GrammarConstraint:
    """Tokens that continue a text of a grammar.

    A thread advances the matcher and computes the mask, because both may take long.
    """

    __slots__ = (
        "_address",
        "_costs",
        "_failure",
        "_grammar",
        "_matcher",
        "_state",
        "_threads",
        "_unconsumed",
        "_words",
    )

    is_active = True

    def __init__(self, grammar: Grammar, threads: MaskThreads) -> None:
        self._grammar = grammar
        self._threads = threads
        self._matcher = grammar.matcher.deep_copy()
        self._unconsumed: list[int] = []  # tokens after the matcher's position
        self._costs = MaskCosts(grammar.tokenizer.mask_limits)
        self._words = np.zeros(-(-len(grammar.tokenizer.vocabulary.tokens) // 32), np.int32)
        self._address = self._words.ctypes.data
        self._failure: ConstraintFailure | None = None
        self._state = _Mask.OUTDATED

    @property
    def is_ready(self) -> bool:
        """Return whether the mask is computed."""
        return self._state is _Mask.READY

    @property
    def is_slow(self) -> bool:
        """Return whether the next mask may take long, as far as the last ones of this text and its grammar tell."""
        return self._costs.is_slow or self._grammar.is_slow

    @property
    def failure(self) -> ConstraintFailure | None:
        """Return why no token is allowed, such as a state that is too complex, or masks that take too long."""
        return self._failure

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token, before the next mask is computed."""
        assert self._state is not _Mask.PENDING, "its mask is being computed"
        self._unconsumed.append(token_id)
        self._state = _Mask.OUTDATED

    def prepare_mask(self) -> None:
        """Begin to compute the mask of the next token, unless it is computed."""
        if self._state is _Mask.OUTDATED:
            self._state = _Mask.PENDING
            self._threads.submit(self)

    def compute(self) -> None:
        """Compute the mask: no token if the grammar has failed, or has become too expensive."""
        began = time.thread_time()
        try:
            self._compute()
        except BaseException:  # of the library, which may panic
            log.exception("a mask could not be computed")
            self._failure = ConstraintFailure("server_error", "Internal server error: a mask could not be computed")
        self._costs.add(time.thread_time() - began)
        self._grammar.is_slow = self._costs.is_slow
        if self._failure is None and self._costs.are_exceeded:
            self._failure = ConstraintFailure(TOO_EXPENSIVE, f"the answer ends here: {self._costs.message}")
        if self._failure is not None:
            self._words[:] = 0
        self._state = _Mask.READY

    def write_mask(self, address: int, size: int) -> None:
        """Write the computed mask."""
        assert self._state is _Mask.READY and size == self._words.nbytes, (self._state, size)
        ctypes.memmove(address, self._address, size)

    def take_seconds(self) -> float:
        """Return the processor time of masks since the last call."""
        return self._costs.take_seconds()

    def _compute(self) -> None:
        for token_id in self._unconsumed:
            self._matcher.consume_token(token_id)
        self._unconsumed.clear()
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(self._address, self._words.nbytes)
        if self._matcher.is_error():
            self._failure = ConstraintFailure("no_token_allowed", error_message(self._matcher))


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
    def is_ready(self) -> bool:
        """Return whether the mask is computed, or none is needed."""
        return self._inner is None or self._stage is _Stage.CLOSING or self._inner.is_ready

    @property
    def failure(self) -> ConstraintFailure | None:
        """Return the failure of the inner constraint."""
        return self._inner.failure if self._inner is not None else None

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

    def prepare_mask(self) -> None:
        """Begin to compute the mask of the inner constraint, unless a closing token is due."""
        if self._inner is not None and self._stage is not _Stage.CLOSING:
            self._inner.prepare_mask()

    def take_seconds(self) -> float:
        """Return the processor time of the inner constraint's masks since the last call."""
        return self._inner.take_seconds() if self._inner is not None else 0.0

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
