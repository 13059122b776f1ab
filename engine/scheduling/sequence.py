"""Mutable state of one choice of a request; owns its tokens and its page table."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.drafting.note import DraftNote
from engine.drafting.speculator import Speculator
from engine.prefixes import chain_next, chain_start
from engine.scheduling.constraint import Constraint
from engine.types import FinishReason, Phase, PreemptionMode, Request, ServiceClass, WaitReason


class State(enum.Enum):
    """Lifecycle state of a sequence."""

    WAITING_FOR_PROMPT = "held back"  # an additional choice, until its first sibling has computed the prompt
    WAITING = "waiting"
    RUNNING = "running"  # has a slot and pages
    PREEMPTED = "paused"  # preempted and waiting again; its generated tokens are kept
    SUSPENDED = "suspended"  # paused by its client; it is in no queue
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Suspension:
    """Pause of a sequence by its client. since: when it began, in seconds."""

    resumes_as: State  # waiting, or preempted if it has had a slot
    since: float


class Sequence:
    """Prompt and generated tokens of one choice, and the location of their keys and values.

    Only the scheduler changes it. `num_computed` tokens have their KV in `page_table` (running) or `host_pages`
    (swapped out); a sequence that was dropped for recomputation has neither and `num_computed == 0`.

    `num_computed` and `num_tokens` run ahead of `tokens`. Tokens of a step in flight count as computed, and the token
    that it samples counts as present (`num_tokens`), although its ID is not known yet. Each of `drafts_in_flight` may
    add a further token.
    """

    __slots__ = (
        "_digests",
        "_page_size",
        "arrival",
        "asks_for_tool",
        "cause",
        "choice",
        "constraint",
        "drafts_in_flight",
        "generated_at_wait",
        "host_pages",
        "max_computed",
        "max_len",
        "mechanism",
        "num_computed",
        "num_published",
        "num_tokens",
        "page_table",
        "phase",
        "policy_state",
        "preempted_by",
        "prompt_leader",
        "prompt_len",
        "reported_position",
        "request",
        "service_class",
        "siblings",
        "slot",
        "speculator",
        "state",
        "stop_ids",
        "suspension",
        "tokens",
        "victim_reason",
        "waiting_since",
        "was_paused",
    )

    def __init__(self, request: Request, choice: int, arrival: int, now: float, page_size: int, max_len: int) -> None:
        self.request = request
        self.choice = choice
        self.service_class = request.service_class
        self.arrival = arrival
        self.tokens = [*request.prompt, *request.output_so_far.get(choice, ())]  # tokens with known IDs
        self.num_tokens = len(self.tokens)
        self.prompt_len = len(request.prompt)
        self.stop_ids = request.sampling.stop_token_ids
        self.max_len = min(max_len, self.prompt_len + request.sampling.max_tokens)
        self.state = State.WAITING
        self.num_computed = 0
        self.drafts_in_flight = 0  # in steps that are not committed
        self.num_published = 0  # full pages already offered to the prefix cache
        self.max_computed = 0  # highest number of tokens ever computed; anything below it is recomputation
        self.page_table: list[int] = []
        self.host_pages: list[int] = []
        self.slot: int | None = None
        # Start of the current wait; a preemption resets it only after a minimum share of tokens.
        self.waiting_since = now if request.waiting_since is None else request.waiting_since
        self.generated_at_wait = self.num_generated  # generated tokens at that time
        self.cause: WaitReason | None = WaitReason.STEP
        self.phase = Phase.QUEUED  # as last reported; so are `cause` and, for a preemption, the next three
        self.preempted_by: ServiceClass | None = None
        self.victim_reason = ""
        self.mechanism: PreemptionMode | None = None
        self.policy_state: Any = None  # created, read and changed by the policy alone
        self.reported_position = 0  # queue position last reported to its client
        self.suspension: Suspension | None = None  # while it is suspended
        self.was_paused = False  # by its client, since it last had a slot
        self.constraint: Constraint | None = None  # of the next token
        self.asks_for_tool = False  # its text so far has a tool call
        self.speculator: Speculator | None = None  # of its drafts, once it may have some
        self.prompt_leader: Sequence | None = None  # the choice that computes the prompt for this one
        self.siblings: list[Sequence] = []  # choices held back until this one has computed the prompt
        self._page_size = page_size
        self._digests: list[bytes] = []

    @property
    def num_generated(self) -> int:
        """Return the number of sampled tokens with known IDs."""
        return len(self.tokens) - self.prompt_len

    @property
    def num_uncomputed(self) -> int:
        """Return the number of tokens without KV; 1 means that it decodes."""
        return self.num_tokens - self.num_computed

    @property
    def has_token_in_flight(self) -> bool:
        """Return whether a step in flight samples a token for it."""
        return self.num_tokens > len(self.tokens)

    @property
    def can_have_drafts(self) -> bool:
        """Return whether its next tokens may be guessed in a step.

        Before `min_tokens` a constraint may allow none but tokens that end the text: a row behind a draft could fail.
        """
        if not self.request.speculation:
            return False
        return self.constraint is None or self.num_tokens - self.prompt_len >= self.request.sampling.min_tokens

    @property
    def draft_note(self) -> DraftNote | None:
        """Return the counts of its drafts so far; None if no step had any."""
        if self.speculator is None or not self.speculator.drafted:
            return None
        drafted, accepted = dict(self.speculator.drafted), dict(self.speculator.accepted)
        earlier = len(self.request.output_so_far.get(self.choice, ()))
        # Each step yields one token and those that its accepted drafts add.
        return DraftNote(self.num_generated - earlier - sum(accepted.values()), drafted, accepted)

    @property
    def lost_tokens(self) -> int:
        """Return the number of tokens that a pause by its client makes it compute again, beyond the last one."""
        return max(0, len(self.tokens) - 1 - self.num_computed) if self.was_paused else 0

    @property
    def pages_needed(self) -> int:
        """Return the number of pages that all its tokens take."""
        return -(-self.num_tokens // self._page_size)

    @property
    def min_remaining_tokens(self) -> int:
        """Return the minimum number of tokens that it will still generate.

        The next token may be the last, unless the sampling parameters rule that out.
        """
        sampling, generated = self.request.sampling, self.num_tokens - self.prompt_len
        if not (sampling.stop_token_ids or sampling.has_stop_strings):
            return self.max_len - self.num_tokens
        return max(1, sampling.min_tokens - generated)

    @property
    def prompt_logprobs(self) -> int | None:
        """Return the requested alternatives of prompt tokens (see `SamplingParams`); None if none are due.

        Only the choice that computes the prompt reports them, when its prompt is computed for the first time.
        """
        is_reported = self.prompt_leader is not None or self.max_computed >= self.prompt_len
        return None if is_reported else self.request.sampling.prompt_logprobs

    def digest(self, index: int) -> bytes:
        """Return the prefix-cache digest of full page `index` of its tokens; computed once."""
        size = self._page_size
        while len(self._digests) <= index:
            start = len(self._digests)
            previous = self._digests[-1] if start else chain_start(self.request.cache_salt)
            self._digests.append(chain_next(previous, self.tokens[start * size : (start + 1) * size]))
        return self._digests[index]

    @property
    def num_prompt_pages(self) -> int:
        """Return the number of full pages of its prompt."""
        return self.prompt_len // self._page_size

    @property
    def published_digests(self) -> list[bytes]:
        """Return the digests of its full pages that were offered to the prefix cache."""
        return self._digests[: self.num_published]

    def reusable_digests(self) -> Iterator[bytes]:
        """Return the digests of its full pages, lazily.

        The last token is computed even if its page is cached, because sampling needs its logits. The scheduler then
        copies that page before it is written. While log-probabilities of the prompt are due, only tokens whose
        successors have been reported are reused.
        """
        reusable = len(self.tokens) if self.prompt_logprobs is None else min(len(self.tokens), self.max_computed)
        return (self.digest(i) for i in range(reusable // self._page_size))

    def finish_reason(self, token_id: int) -> FinishReason | None:
        """Return the reason for which `token_id`, just appended, ends the sequence; None if it does not."""
        sampling, length = self.request.sampling, len(self.tokens)
        if token_id in sampling.stop_token_ids and length - self.prompt_len >= sampling.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.max_len else None

    def __repr__(self) -> str:
        return f"<{self.request.id}/{self.choice} {self.state.value} {self.num_computed}/{len(self.tokens)} tokens>"
