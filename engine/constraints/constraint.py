"""Constraints of one sequence: a grammar, and a limit of reasoning tokens around it."""

from __future__ import annotations

import ctypes
import enum
import logging
import time
from collections.abc import Sequence as Seq

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.constraints.forced import forced_token, is_allowed
from engine.constraints.grammars import TOO_EXPENSIVE, GrammarTokenizer, error_message
from engine.constraints.mask_costs import MaskCosts
from engine.constraints.mask_threads import MaskThreads
from engine.scheduling.constraint import NO_DRAFTS, Constraint, ConstraintFailure, Drafts
from engine.types import ReasoningLimit

log = logging.getLogger(__name__)

MAX_LEADING_BYTES = 256  # of white space before a reasoning block
MAX_DRAFT_SECONDS = 0.001  # processor time for the masks after drafts; one more than that ends them
FIRST_PAUSE = 256  # masks of a grammar without drafts after a dear one; doubled after each further one


class _Mask(enum.Enum):
    OUTDATED = enum.auto()
    PENDING = enum.auto()
    READY = enum.auto()


class Grammar:
    """Compiled grammar, and whether masks of its texts have taken long lately.

    A text may never enter the part of a grammar that is dear, so that only masks after drafts take long, which end no
    answer: their number is bounded for all texts of the grammar.
    """

    def __init__(self, matcher: LLMatcher, tokenizer: GrammarTokenizer) -> None:
        """matcher: at the beginning; it is never advanced."""
        self.matcher = matcher
        self.tokenizer = tokenizer
        self.is_slow = False
        self._next_pause = FIRST_PAUSE
        self._pause = 0  # masks until the next drafts

    def can_draft(self) -> bool:
        """Return whether drafts may follow a mask, which is counted."""
        self._pause = max(0, self._pause - 1)
        return not self._pause

    def pause_drafts(self) -> None:
        """Pause after drafts whose masks have taken long, each time twice as long."""
        self._pause, self._next_pause = self._next_pause, 2 * self._next_pause


class GrammarConstraint:
    """Tokens that continue a text of a grammar.

    A thread advances the matcher and computes the masks, because both may take long. After the mask of the next token
    it goes on along drafts, and returns the matcher to its place.
    """

    __slots__ = (
        "_can_draft",
        "_consumed",
        "_costs",
        "_drafts",
        "_failure",
        "_grammar",
        "_limit",
        "_matcher",
        "_proposal",
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
        self._consumed: list[int] = []  # tokens up to the matcher's position
        self._unconsumed: list[int] = []  # tokens after it
        self._costs = MaskCosts(grammar.tokenizer.mask_limits)
        # Masks [1 + drafts, ceil(V / 32)].
        self._words = np.zeros((1, -(-len(grammar.tokenizer.vocabulary.tokens) // 32)), np.int32)
        self._proposal: Seq[int] = ()
        self._limit = 0  # of drafts
        self._drafts = NO_DRAFTS
        self._can_draft = True  # no draft has led to an error of the matcher
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

    @property
    def drafts(self) -> Drafts:
        """Return the drafts with computed masks."""
        return self._drafts if self._state is _Mask.READY else NO_DRAFTS

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token, before the next mask is computed."""
        assert self._state is not _Mask.PENDING, "its mask is being computed"
        self._unconsumed.append(token_id)
        self._state = _Mask.OUTDATED

    def prepare_mask(self, proposal: Seq[int] = (), limit: int = 0) -> None:
        """Begin to compute the mask of the next token, unless it is computed, and those after drafts.

        There are no drafts while masks take long.
        """
        if self._state is _Mask.OUTDATED:
            self._state, self._proposal, self._limit = _Mask.PENDING, proposal, limit
            self._threads.submit(self)

    def compute(self) -> None:
        """Compute the masks: no token if the grammar has failed, or has become too expensive."""
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
        self._drafts = NO_DRAFTS
        if self._failure is not None:
            self._words[:] = 0
        elif self._limit and self._can_draft and not self.is_slow and self._grammar.can_draft():
            began = time.thread_time()
            self._draft(began + MAX_DRAFT_SECONDS)
            if self._costs.add_drafts(time.thread_time() - began, MAX_DRAFT_SECONDS):
                self._grammar.pause_drafts()
        self._state = _Mask.READY

    def write_masks(self, address: int, size: int, count: int = 1) -> None:
        """Write the computed masks."""
        assert self._state is _Mask.READY and count <= 1 + len(self._drafts.tokens), (self._state, count)
        assert size == self._words[0].nbytes, size
        ctypes.memmove(address, self._words.ctypes.data, count * size)

    def take_seconds(self) -> float:
        """Return the processor time of masks since the last call."""
        return self._costs.take_seconds()

    def _compute(self) -> None:
        for token_id in self._unconsumed:
            self._matcher.consume_token(token_id)
        self._consumed += self._unconsumed
        self._unconsumed.clear()
        self._compute_mask(0)
        if self._matcher.is_error():
            self._failure = ConstraintFailure("no_token_allowed", error_message(self._matcher))

    def _compute_mask(self, index: int) -> None:
        if not self._matcher.is_error():
            mask = self._words[index]
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def _draft(self, ends_at: float) -> None:
        """Compute the masks after drafts, until the thread's processor time `ends_at`.

        An error of the matcher is one of these drafts, not of the text, which it then follows anew.
        """
        if len(self._words) <= self._limit:
            self._words = np.concatenate((self._words, np.zeros((self._limit, self._words.shape[1]), np.int32)))[
                : 1 + self._limit
            ]
        tokens: list[int] = []
        is_forced: list[bool] = []
        try:
            while len(tokens) < self._limit and time.thread_time() < ends_at:
                token_id, forced = self._next_draft(tokens, self._words[len(tokens)])
                if token_id is None:
                    break
                tokens.append(token_id)
                self._matcher.consume_token(token_id)
                self._compute_mask(len(tokens))
                if self._matcher.is_error() or not self._words[len(tokens)].any():
                    break
                is_forced.append(forced)
            self._matcher.rollback(len(tokens))
            self._can_draft = not self._matcher.is_error()
        except BaseException:  # of the library, which may panic
            log.exception("the masks after drafts could not be computed")
            self._can_draft = False
        self._drafts = Drafts(tuple(tokens[: len(is_forced)]), tuple(is_forced))
        if not self._can_draft:
            self._drafts = NO_DRAFTS
            self._matcher = self._grammar.matcher.deep_copy()
            for token_id in self._consumed:
                self._matcher.consume_token(token_id)

    def _next_draft(self, tokens: list[int], mask: NDArray[np.int32]) -> tuple[int | None, bool]:
        """Return the draft after others, None if there is none, and whether it is forced."""
        vocabulary, index = self._grammar.tokenizer.vocabulary, len(tokens)
        token_id: int | None = None
        if index < len(self._proposal) and list(self._proposal[:index]) == tokens:
            token_id = self._proposal[index]
        is_proposed = token_id is not None and is_allowed(mask, token_id)
        if not is_proposed:
            token_id = forced_token(mask, vocabulary.tokens)
        return (None if token_id in vocabulary.eos_ids else token_id), not is_proposed


class _Stage(enum.Enum):
    BEFORE = enum.auto()  # an opening tag may come
    OPEN = enum.auto()
    CLOSING = enum.auto()  # the limit is used up: the closing tokens are forced
    DONE = enum.auto()


class ReasoningConstraint:
    """Limit of the tokens in a reasoning block, after which the tokens that close it are forced.

    Tokens of the tags do not count. `inner` is the constraint of the whole text, if there is one.
    """

    __slots__ = ("_drafts", "_forced", "_inner", "_limit", "_stage", "_tail", "_tokens", "_used")

    def __init__(self, limit: ReasoningLimit, tokens: tuple[bytes, ...], inner: Constraint | None) -> None:
        self._limit = limit
        self._tokens = tokens
        self._inner = inner
        self._tail = b""  # bytes in which a tag may begin
        self._used = 0  # tokens in the block
        self._forced = 0  # closing tokens so far
        self._drafts = NO_DRAFTS  # if there is no inner constraint
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

    @property
    def drafts(self) -> Drafts:
        """Return the drafts, none while a tag opens or closes."""
        if self._inner is None:
            return self._drafts
        return NO_DRAFTS if self._stage is _Stage.CLOSING else self._inner.drafts

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token."""
        self._drafts = NO_DRAFTS
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

    def prepare_mask(self, proposal: Seq[int] = (), limit: int = 0) -> None:
        """Begin to compute the masks of the inner constraint, unless a closing token is due.

        The limit cannot be reached within drafts, since a closing token would then be due after one of them.
        """
        if self._stage is not _Stage.DONE:
            left = self._limit.max_tokens - self._used - 1
            limit = max(0, min(limit, left)) if self._stage is _Stage.OPEN else 0
        if self._inner is None:
            drafts = tuple(proposal[:limit])
            self._drafts = Drafts(drafts, (False,) * len(drafts))
        elif self._stage is not _Stage.CLOSING:
            self._inner.prepare_mask(proposal, limit)

    def take_seconds(self) -> float:
        """Return the processor time of the inner constraint's masks since the last call."""
        return self._inner.take_seconds() if self._inner is not None else 0.0

    def write_masks(self, address: int, size: int, count: int = 1) -> None:
        """Write the allowed tokens: the next closing token if it is due, else those of the inner constraint."""
        if self._stage is not _Stage.CLOSING:
            assert self._inner is not None
            self._inner.write_masks(address, size, count)
            return
        assert count == 1, count
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
