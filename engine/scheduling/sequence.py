"""Sequence: the one mutable object per choice of a request. Owns its tokens and its page table."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.scheduling.pages import chain_next, chain_start
from engine.types import Cause, FinishReason, Mechanism, Phase, Request, ServiceClass

if TYPE_CHECKING:
    from engine.scheduling.fairness import Account


class State(enum.Enum):
    """Where a sequence is in its life."""

    HELD_BACK = "held back"  # a further choice, until its first sibling has computed the prompt
    WAITING = "waiting"
    RUNNING = "running"  # has a slot and pages
    PAUSED = "paused"  # waits again; what it generated is kept
    FINISHED = "finished"


class Sequence:
    """Prompt and generated tokens of one choice, and where their keys and values lie.

    Only the scheduler changes it. `num_computed` tokens have their KV in `page_table` (running) or `host_pages`
    (swapped out); a sequence that was dropped for recomputation has neither and `num_computed == 0`.

    Both numbers run ahead of `tokens`: what a step that is under way computes counts as computed, and the token it
    samples as one that the sequence has, though nobody knows yet which (`num_tokens`).
    """

    __slots__ = (
        "_digests",
        "_page_size",
        "account",
        "arrival",
        "cause",
        "choice",
        "due",
        "has_claim",
        "high_water",
        "host_pages",
        "is_overdue",
        "lead",
        "level",
        "mechanism",
        "most_tokens",
        "next_due",
        "num_computed",
        "num_published",
        "num_tokens",
        "paced_tokens",
        "page_table",
        "paused_by",
        "paused_why",
        "phase",
        "prompt_len",
        "quantum",
        "request",
        "rode",
        "service_class",
        "share_left",
        "siblings",
        "slot",
        "state",
        "stops",
        "tokens",
        "told_position",
        "waiting_from",
        "waiting_since",
    )

    def __init__(self, request: Request, choice: int, arrival: int, now: float, page_size: int, max_len: int) -> None:
        self.request = request
        self.choice = choice
        self.service_class = request.service_class
        self.arrival = arrival
        self.tokens = [*request.prompt, *request.said.get(choice, ())]  # the known ones
        self.num_tokens = len(self.tokens)
        self.prompt_len = len(request.prompt)
        self.stops = request.sampling.stop_token_ids
        self.most_tokens = min(max_len, self.prompt_len + request.sampling.max_tokens)
        self.state = State.WAITING
        self.num_computed = 0
        self.num_published = 0  # full pages already offered to the prefix cache
        self.high_water = 0  # most tokens ever computed; what lies below it is recomputation
        self.page_table: list[int] = []
        self.host_pages: list[int] = []
        self.slot: int | None = None
        # When it last had nothing to complain about.
        self.waiting_since = now if request.since is None else request.since
        self.waiting_from = self.num_generated  # tokens it had generated then
        self.cause: Cause | None = Cause.STEP
        self.phase = Phase.QUEUED  # as last told; so are `cause` and, of a pause, the next three
        self.paused_by: ServiceClass | None = None
        self.paused_why = ""
        self.mechanism: Mechanism | None = None
        # A policy's own.
        self.account: Account  # of its tenant
        self.due = 0.0  # when it will have waited too long
        self.is_overdue = False  # waits, and has waited too long
        self.share_left = 0  # tokens that it should have generated before it is paused again
        self.has_claim = False  # and must
        self.rode = 0  # the step in which it last rode along with a higher class
        self.next_due, self.paced_tokens = 0.0, 0  # deadline of its next token, as of so many tokens
        self.level, self.quantum = 0, 0.0  # of a multi-level feedback queue
        self.told_position = 0  # the queue position its client was last told
        self.lead: Sequence | None = None  # the choice that computes the prompt for this one
        self.siblings: list[Sequence] = []  # choices held back until this one has computed the prompt
        self._page_size = page_size
        self._digests: list[bytes] = []

    @property
    def num_generated(self) -> int:
        """Tokens known to have been sampled so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV is missing. 1 means: it decodes."""
        return self.num_tokens - self.num_computed

    @property
    def is_awaited(self) -> bool:
        """True while a step that is under way samples for it."""
        return self.num_tokens > len(self.tokens)

    @property
    def pages_needed(self) -> int:
        """Pages that hold all its tokens."""
        return -(-self.num_tokens // self._page_size)

    @property
    def is_protected(self) -> bool:
        """True while its claim to a minimum share lasts: it is paused only if nobody else can be."""
        return self.has_claim and self.share_left > 0

    @property
    def least_remaining(self) -> int:
        """Tokens that it will generate at the least: the next one may end it, unless its caller ruled that out."""
        sampling, had = self.request.sampling, self.num_tokens - self.prompt_len
        if not (sampling.stop_token_ids or sampling.has_stop_strings):
            return self.most_tokens - self.num_tokens
        return max(1, sampling.min_tokens - had)

    def digest(self, index: int) -> bytes:
        """The prefix-cache digest of full page `index` of its tokens; computed once."""
        size = self._page_size
        while len(self._digests) <= index:
            at = len(self._digests)
            previous = self._digests[-1] if at else chain_start(self.request.cache_salt)
            self._digests.append(chain_next(previous, self.tokens[at * size : (at + 1) * size]))
        return self._digests[index]

    def reusable_digests(self) -> Iterator[bytes]:
        """Digests of its full pages, lazily. The last token is computed even when its page is known, for something to
        sample from; the scheduler then copies that page before it is written."""
        return (self.digest(i) for i in range(len(self.tokens) // self._page_size))

    def finish_reason(self, token_id: int) -> FinishReason | None:
        """Why `token_id`, just appended, ends the sequence, if it does."""
        sampling, length = self.request.sampling, len(self.tokens)
        if token_id in sampling.stop_token_ids and length - self.prompt_len >= sampling.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.most_tokens else None

    def __repr__(self) -> str:
        return f"<{self.request.id}/{self.choice} {self.state.value} {self.num_computed}/{len(self.tokens)} tokens>"
