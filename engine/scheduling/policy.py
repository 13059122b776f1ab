"""Interface of scheduling policies: queue order, admission, preemption.

The scheduler owns slots, pages and tokens and enforces all guarantees about them; a policy makes the choices and
returns them as values (`engine.scheduling.admission`). One policy is ours (`policies/carousel.py`), the others follow
comparable systems (`policies/baselines.py`), so that a comparison has the same engine under each row. A policy reads
sequences and changes nothing of them but `policy_state`, which it creates when it first queues one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.config import EngineConfig
from engine.scheduling.admission import (
    NO_ADMISSION,
    Admission,
    AdmissionPlan,
    AdmissionView,
    Preemption,
    Shortage,
)
from engine.scheduling.costs import Costs
from engine.scheduling.sequence import Sequence
from engine.scheduling.step_time_model import StepTimeModel
from engine.types import PreemptionMode, WaitReason

# Time for prompts in a step: a few decode steps, within limits that people perceive as even.
STEP_TIME_DECODE_STEPS, MIN_STEP_SECONDS, MAX_STEP_SECONDS = 3, 0.005, 0.03
# Prompt tokens of a step without decode rows, as fewer waste a pass over the weights; of any step: more gain nothing.
MIN_PROMPT_TOKENS, MAX_STEP_TOKENS = 32, 2048
MIN_PROMPT_SHARE = 0.2  # of the time of decode rows, for prompts: on a slow processor nothing else may be left


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Memory situation when a sequence has to be preempted."""

    pages_needed: int  # pages that must be freed now; 0 if only a slot is needed
    expected_pages: int  # pages that will be taken beyond the available ones, before the preempted sequence resumes
    host_pages_available: int  # available host pages


@dataclass(frozen=True, slots=True)
class StepShares:
    """Allocation of one step's tokens."""

    decodes: list[Sequence]  # in service order
    held_back: list[Sequence]  # sequences that could decode but wait for another step
    prompts: list[tuple[list[Sequence], int]]  # groups in order, and the maximum work for each


PreemptibleFn = Callable[[], list[Sequence]]


def no_candidates() -> list[Sequence]:
    """Return no preemption candidates."""
    return []


class Policy(ABC):
    """Scheduling choices as pure functions of their inputs: no clock, no randomness."""

    name: str
    plans_time = True  # whether the budget of prompts stands for time, unless it is configured in tokens

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        self.config = config
        self.costs = costs
        self.step_time_model = StepTimeModel(costs)

    @property
    def step_seconds(self) -> float:
        """Return the time for prompts in a step, as configured or derived from observed steps."""
        if self.config.step_time is not None:
            return self.config.step_time
        if not self.step_time_model.single_row_seconds:
            return MAX_STEP_SECONDS
        return max(
            MIN_STEP_SECONDS, min(MAX_STEP_SECONDS, STEP_TIME_DECODE_STEPS * self.step_time_model.single_row_seconds)
        )

    # Queue --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def push(self, sequence: Sequence) -> None:
        """Queue `sequence`, which has arrived or was preempted."""

    @abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is about to run or has ended."""

    @abstractmethod
    def in_order(self) -> Iterator[Sequence]:
        """Iterate over all waiting sequences in order. As long as the queue, so read only the first few."""

    def num_ahead(self, sequence: Sequence) -> int:
        """Return how many sequences go before `sequence`, which is first in its queue but could not be admitted."""
        return 0

    def wait_reason(self, sequence: Sequence) -> WaitReason:
        """Return why a sequence that is not first in its queue waits."""
        return WaitReason.ORDER

    # A step -------------------------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:  # noqa: B027
        """Prepare for the scheduling of a step."""

    @abstractmethod
    def plan_admission(self, view: AdmissionView, now: float) -> AdmissionPlan:
        """Return the decisions about the next waiting sequence; changes nothing.

        The scheduler applies the plan and asks again, until a plan admits no sequence.
        """

    @abstractmethod
    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return the sort key of a running sequence, lowest first. It changes only with its class."""

    def prompt_tokens(self, decodes: int, piggyback_rows: int = 0, seconds: float = 0.0) -> int:
        """Return the prompt work of a step with `decodes` decode rows, in tokens at the beginning of a prompt.

        This is at least 1. It is the configured budget, or the work that is done in `step_seconds`, but no more tokens
        than can be recorded with these rows and `piggyback_rows` others. Time of the rows beyond that of a single row
        is subtracted, as long as prompts keep half of the step. A step without decode rows has twice the time, or its
        base time if that is longer. Prompts get at least `seconds`, unless a budget or `step_time` is configured.
        """
        if self.config.max_num_batched_tokens is not None:
            return self.config.max_num_batched_tokens - decodes
        max_seconds, rows = self.step_seconds, self.step_time_model.step_seconds(decodes)
        granted = (
            min(max_seconds, max(max_seconds + self.step_time_model.single_row_seconds - rows, rows))
            if decodes
            else max(2 * max_seconds, self.step_time_model.prompt_base)
        )
        if self.config.step_time is None:
            granted = max(granted, seconds, MIN_PROMPT_SHARE * rows if decodes else 0.0)
        affordable = granted / max(self.step_time_model.token_seconds, 1e-9)
        recorded = self.costs.recorded_tokens if decodes or piggyback_rows else 0
        recordable = recorded - piggyback_rows if recorded else MAX_STEP_TOKENS
        least = 1 if decodes or piggyback_rows else MIN_PROMPT_TOKENS
        return max(least, int(min(min(recordable, MAX_STEP_TOKENS) - decodes, affordable)))

    def share(self, decodes: list[Sequence], prefilling: list[Sequence], step: int, now: float) -> StepShares:
        """Return the contents of step number `step`.

        `decodes` are the sequences that could decode, `prefilling` those with prompt tokens to read, each in service
        order.
        """
        return StepShares(decodes, [], [(prefilling, self.prompt_tokens(len(decodes)))])

    # Preemption ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def preemption_candidates(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Return the candidates for preemption when there is no page for `growing`'s next token; not empty."""

    @abstractmethod
    def victim(self, candidates: Iterable[Sequence], pressure: MemoryPressure) -> Sequence:
        """Return the sequence to preempt among `candidates`, of which there is at least one."""

    @abstractmethod
    def victim_reason(self, victim: Sequence, beneficiary: Sequence | None) -> str:
        """Return why this sequence was chosen, without naming another client or its text.

        `beneficiary` is the sequence that gets its place; None if memory ran short among equals.
        """

    def preemption_mode(self, sequence: Sequence, pressure: MemoryPressure) -> PreemptionMode:
        """Return the cheapest way to keep the computed tokens of `sequence`."""
        return self.preemption_cost(sequence, pressure)[1]

    def preemption_cost(self, sequence: Sequence, pressure: MemoryPressure) -> tuple[float, PreemptionMode]:
        """Return the machine time in seconds that a preemption will cost, and the cheapest mode.

        With a prefix cache, dropped pages disappear only when they are reused, the last ones first. Recomputation
        therefore covers the tail whose pages are needed, and the tokens that do not fill a page.
        """
        size, costs = self.config.tokens_per_page, self.costs
        pages, computed = len(sequence.page_table), sequence.num_computed
        if computed == 0:
            return 0.0, PreemptionMode.RECOMPUTE
        kept = 0
        if self.config.enable_prefix_caching:
            kept = min(computed // size, max(0, pages - max(0, pressure.expected_pages)))
        drop = (
            self.step_time_model.prompt_seconds(self.step_time_model.work(kept * size, computed - kept * size)),
            PreemptionMode.PARTIAL if kept else PreemptionMode.RECOMPUTE,
        )
        num_written = -(-computed // size)
        if num_written > pressure.host_pages_available:
            return drop
        return min(drop, (costs.swap_seconds(num_written), PreemptionMode.SWAP), key=lambda option: option[0])

    # Notifications ------------------------------------------------------------------------------------------------

    def slot_taken(self, admission: Admission, charged_tokens: float, *, is_resumed: bool) -> None:  # noqa: B027
        """Note that an admission was applied; its tenant is charged for tokens to compute and for kept ones."""

    def tokens_sampled(self, sequences: Iterable[Sequence]) -> None:  # noqa: B027
        """Note that each of `sequences` got a token."""

    def host_time_spent(self, sequence: Sequence, seconds: float) -> None:  # noqa: B027
        """Note that processor time beside the steps was spent for `sequence`."""

    def slot_released(self, sequence: Sequence) -> None:  # noqa: B027
        """Note that `sequence` lost its slot: it has ended, is preempted or paused, or changes its class."""

    def class_changed(self, sequence: Sequence) -> None:  # noqa: B027
        """Note that `sequence`, which has just lost its slot in another class, has it in its new one."""

    def on_preempted(self, sequence: Sequence) -> None:  # noqa: B027
        """Note that `sequence` was preempted; it is pushed next."""

    # Plans --------------------------------------------------------------------------------------------------------

    def preemption(
        self,
        view: AdmissionView,
        victim: Sequence,
        pressure: MemoryPressure | None = None,
        *,
        beneficiary: Sequence | None = None,
        mode: PreemptionMode | None = None,
    ) -> Preemption:
        """Return the preemption of `victim`, in the cheapest mode under `pressure` unless `mode` is given."""
        mode = mode or self.preemption_mode(victim, pressure or self._pressure(view, 0))
        return Preemption(victim, mode, self.victim_reason(victim, beneficiary), beneficiary)

    def preemption_for_growth(self, view: AdmissionView, growing: Sequence) -> Preemption:
        """Return the preemption that makes a page available for `growing`'s next token; it may be its own."""
        pressure = self._pressure(view, 1)
        victim = self.victim(self.preemption_candidates(growing, view.running), pressure)
        is_lower = victim.service_class > growing.service_class
        return self.preemption(view, victim, pressure, beneficiary=growing if is_lower else None)

    def plan_for(
        self,
        view: AdmissionView,
        sequence: Sequence,
        preemptible: PreemptibleFn = no_candidates,
        *,
        margin: int | None = None,
        is_guaranteed: bool = False,
    ) -> AdmissionPlan:
        """Return the plan that starts `sequence`, or the resource that it lacks, without preemptions.

        Preempts from `preemptible` if needed; it is evaluated lazily. `margin` pages must remain for running sequences
        to grow; the default margin depends on the size of the pool and the number of running sequences.
        """
        if sequence.has_token_in_flight:  # just preempted: its last token is known when that step is committed
            return NO_ADMISSION
        if view.is_closed:
            return _shortage(sequence, WaitReason.BATCH)
        candidates = [] if view.has_free_slot else preemptible()
        if not view.has_free_slot and not candidates:  # before the cache lookup: most waiting sequences end here
            return _shortage(sequence, WaitReason.SLOTS)
        reused = view.pages.reusable_pages(sequence, candidates)
        preemptions: tuple[Preemption, ...] | None = ()
        max_margin = view.max_margin if margin is None else margin
        if not view.has_free_slot or view.pages.pages_short(sequence, reused) + max_margin > 0:
            candidates = candidates or preemptible()
            if sequence.prompt_leader in candidates:  # its pages may be reused at once
                reused = view.pages.reusable_pages(sequence, candidates)
            preemptions = self._make_room(view, sequence, candidates, reused, margin)
        if preemptions is None:
            return _shortage(sequence, WaitReason.PAGES)
        restored = self._restored_pages(view, sequence, len(reused))
        return AdmissionPlan((), preemptions, Admission(sequence, reused, is_guaranteed, restored))

    def _restored_pages(self, view: AdmissionView, sequence: Sequence, num_reused: int) -> int:
        """Return how many pages to copy from host memory: all, unless computing them takes less time."""
        pages, size = view.pages.pages_on_host(sequence, num_reused), self.config.tokens_per_page
        work = self.step_time_model.work(num_reused * size, pages * size) if pages else 0.0
        return pages if self.costs.copy_seconds(pages) < self.step_time_model.prompt_seconds(work) else 0

    def _make_room(
        self,
        view: AdmissionView,
        beneficiary: Sequence,
        candidates: list[Sequence],
        reused: list[int],
        margin: int | None,
    ) -> tuple[Preemption, ...] | None:
        """Return the preemptions after which `beneficiary` fits; None if not even those of all `candidates` suffice."""
        # The remaining sequences will grow. Without this margin an admitted sequence would be preempted a few steps
        # later.
        if margin is None:
            margin = min(len(view.running) - len(candidates), view.max_margin)
        pages_short = view.pages.pages_short(beneficiary, reused) + margin
        if pages_short > 0:
            reclaimable = view.pages.reclaim(reused)
            for candidate in candidates:
                reclaimable.add(candidate)
            if pages_short > reclaimable.count:
                return None
        has_slot, reclaimed = view.has_free_slot, view.pages.reclaim(reused)
        preemptions: list[Preemption] = []
        while not has_slot or pages_short > reclaimed.count:
            pressure = self._pressure(view, pages_short - reclaimed.count, preemptions)
            victim = self.victim(candidates, pressure)
            preemptions.append(self.preemption(view, victim, pressure, beneficiary=beneficiary))
            candidates = [s for s in candidates if s is not victim]
            reclaimed.add(victim)
            has_slot = True
        return tuple(preemptions)

    def _pressure(
        self, view: AdmissionView, pages_short: int, preemptions: Iterable[Preemption] = ()
    ) -> MemoryPressure:
        """Return the memory situation when `pages_short` pages are missing after `preemptions`; negative: to spare."""
        num_running, host_pages = len(view.running), view.pages.host_pages_available
        for preemption in preemptions:
            num_running -= 1
            if preemption.mode is PreemptionMode.SWAP:
                host_pages -= -(-preemption.victim.num_computed // self.config.tokens_per_page)
        growth = num_running * -(-self.config.min_share // self.config.tokens_per_page)
        return MemoryPressure(max(0, pages_short), pages_short + growth, host_pages)


def _shortage(sequence: Sequence, cause: WaitReason) -> AdmissionPlan:
    return AdmissionPlan((Shortage(sequence, cause),))
