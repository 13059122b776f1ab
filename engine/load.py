"""Load and counters of an engine, sent with every step, and the snapshot of its slots for the live view."""

from __future__ import annotations

import msgspec

from engine.prompt_pace import PromptPace
from engine.types import PreemptionMode, ServiceClass, WaitReason


class PageCounts(msgspec.Struct, frozen=True, array_like=True):
    """Page counts of the pool. free + cached + held == total, always."""

    total: int
    held: int
    cached: int
    free: int
    swapped: int  # host pages of preempted sequences
    host_total: int
    kept: int = 0  # pages that sessions keep while they wait for tools
    host_cached: int = 0  # host pages of sessions
    on_disk: int = 0  # pages of sessions


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """Running totals since the engine started; they only grow."""

    steps: int = 0
    finished: int = 0
    prompt_tokens: int = 0  # prompt tokens of admitted requests
    cached_tokens: int = 0  # of these, found in the prefix cache
    computed_tokens: int = 0  # tokens put through the model, recomputation included, without wrong guesses
    recomputed_tokens: int = 0  # of these, computed before and dropped
    generated_tokens: int = 0
    swapped_tokens: int = 0  # tokens with KV moved to host memory
    preemptions: tuple[tuple[int, int, int], ...] = ((0, 0, 0),) * 3  # by class: swap, partial, recompute
    late: int = 0  # requests that were given up because their deadline could not be met
    mask_microseconds: int = 0  # processor time of masks of constrained tokens
    rows_without_mask: int = 0  # constrained rows that missed a step, as their masks were not computed in time
    trials: int = 0  # requests that were computed alone, because they may have ended an engine
    trial_pause_microseconds: int = 0  # time in which others waited for that
    moved_tokens: int = 0  # tokens of sessions with KV moved to host memory
    restored_tokens: int = 0  # of these, moved back
    lost_tokens: int = 0  # tokens of sessions with KV that other requests needed the memory of
    beyond_share_tokens: int = 0  # tokens that sessions keep no more, for the share of all sessions that wait
    expired_tokens: int = 0  # tokens that sessions keep no more, as time has passed
    stored_tokens: int = 0  # tokens of sessions with KV written to disk
    unstored_tokens: int = 0  # that could not be written
    read_tokens: int = 0  # read from disk
    unreadable_tokens: int = 0  # that could not be read, or were damaged
    drafts: int = 0  # rows of tokens that were guessed for a sequence in a step
    drafted_tokens: int = 0  # in these
    accepted_by_position: tuple[int, ...] = ()  # of these, right, by position in their draft

    @property
    def accepted_tokens(self) -> int:
        """Return how many guessed tokens were right."""
        return sum(self.accepted_by_position)

    def paused_by(self, mechanism: PreemptionMode) -> int:
        """Return the number of preemptions with `mechanism`."""
        return sum(by_class[list(PreemptionMode).index(mechanism)] for by_class in self.preemptions)


class EngineLoad(msgspec.Struct, frozen=True, array_like=True):
    """Current load of the engine, sent with every step."""

    running: tuple[int, int, int]  # by class
    waiting: tuple[int, int, int]  # by class, without preempted sequences
    paused: tuple[int, int, int]  # by class, preempted sequences
    pages: PageCounts
    counters: Counters
    decode_rows: int = 0  # of the last step
    prefill_tokens: int = 0  # of the last step
    step_seconds: float = 0.0  # of the last step
    step_target: float = 0.0  # seconds for prompts in a step, if they are not urgent
    busy_seconds: float = 0.0  # seconds since the engine started in which a step was computed
    suspended: tuple[int, int, int] = (0, 0, 0)  # by class, sequences that their clients have paused
    prompt_pace: PromptPace | None = None


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """One occupied slot in the live view."""

    slot: int
    request_id: str
    service_class: ServiceClass
    state: str  # "prefill" | "decode"
    context: int
    generated: int
    pages: int
    step_tokens: int = 1  # that its last step yielded, more than one with drafts


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """One waiting or preempted request in the live view."""

    request_id: str
    service_class: ServiceClass
    paused: bool
    waited: float  # seconds
    context: int
    cause: WaitReason | None = None
    by: ServiceClass | None = None
    mechanism: PreemptionMode | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """All slots and the head of the queue at one moment. Costs O(slots); sent only while the live view is open."""

    slots: tuple[SlotView, ...]
    waiting: tuple[WaitView, ...]  # the first few in order
    total_slots: int
    page_size: int
