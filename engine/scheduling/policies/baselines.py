"""Policies of comparable systems, on our slots, pages and kernels, as rows of a comparison.

Where such a system has integer priorities instead of classes, a class counts as a large enough difference of priority.
The scheduler enforces deadlines under every policy; only the carousel policy has fairness among tenants.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from sortedcontainers import SortedKeyList

from engine.config import EngineConfig
from engine.scheduling.admission import NO_ADMISSION, AdmissionPlan, AdmissionView
from engine.scheduling.costs import Costs
from engine.scheduling.policy import MAX_STEP_TOKENS, MemoryPressure, Policy
from engine.scheduling.sequence import Sequence, State
from engine.types import PreemptionMode


class _SingleQueue(Policy):
    """Policy with one queue, ordered by `rank`."""

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._waiting: SortedKeyList[Sequence, Any] = SortedKeyList(key=self.rank)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return the sort key of a waiting sequence, lowest first. Must not change while it waits."""
        return (sequence.arrival, sequence.choice)

    def push(self, sequence: Sequence) -> None:
        """Queue `sequence` by rank; a preempted sequence keeps its rank."""
        self._waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence` from the queue."""
        self._waiting.remove(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """Return the waiting sequences by rank."""
        return iter(self._waiting)

    def plan_admission(self, view: AdmissionView, now: float) -> AdmissionPlan:
        """Plan for the first sequence by rank."""
        return self.plan_for_first(view, self._waiting[0]) if self._waiting else NO_ADMISSION

    def plan_for_first(self, view: AdmissionView, first: Sequence) -> AdmissionPlan:
        """Plan for `first`; no sequence is preempted for a waiting one."""
        return self.plan_for(view, first)

    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return the order of arrival."""
        return (sequence.arrival, sequence.choice)

    def preemption_candidates(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Return all running sequences."""
        return list(running)

    def victim(self, candidates: Iterable[Sequence], pressure: MemoryPressure) -> Sequence:
        """Return the last sequence by rank."""
        return max(candidates, key=self.rank)

    def victim_reason(self, victim: Sequence, beneficiary: Sequence | None) -> str:
        """Return the fixed reason: last by rank."""
        return "it was the last in order of the running sequences"


class Orca(_SingleQueue):
    """Iteration-level first come, first served (Orca, Yu et al., OSDI'22).

    Memory for the longest possible answer is reserved at admission, so no sequence is ever preempted. A prompt is read
    in one step.
    """

    name = "orca"

    def plan_for_first(self, view: AdmissionView, first: Sequence) -> AdmissionPlan:
        """Plan for `first` if the longest possible answers of all running sequences fit beside its own."""
        size = self.config.tokens_per_page

        def pages_to_come(sequence: Sequence, held: int) -> int:
            return -(-sequence.max_len // size) - held

        reserved = sum(pages_to_come(s, len(s.page_table)) for s in view.running)
        margin = reserved + pages_to_come(first, first.pages_needed) if view.running else 0
        return self.plan_for(view, first, margin=margin)

    plans_time = False

    def prompt_tokens(self, decodes: int, piggyback_rows: int = 0, seconds: float = 0.0) -> int:
        """Return the configured budget, or as many tokens as the machine takes."""
        if self.config.max_num_batched_tokens is not None:
            return self.config.max_num_batched_tokens - decodes
        return MAX_STEP_TOKENS - decodes


class Vllm(_SingleQueue):
    """`--scheduling-policy priority` of vLLM V1 (0.10 and later).

    The queue is ordered by priority, then arrival. No running sequence is preempted for a slot. When memory runs short,
    the last one by that order is preempted and recomputed, and no sequence is admitted in that step.
    """

    name = "vllm"

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._has_preempted = False

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return priority, then arrival."""
        return (sequence.service_class, sequence.request.priority, sequence.arrival, sequence.choice)

    def begin_step(self, now: float) -> None:
        """Reset the flag for preemptions in this step."""
        self._has_preempted = False

    def on_preempted(self, sequence: Sequence) -> None:
        """Note that a sequence was preempted for memory in this step."""
        self._has_preempted = True

    def plan_for_first(self, view: AdmissionView, first: Sequence) -> AdmissionPlan:
        """Plan for `first` unless a sequence was preempted in this step."""
        return NO_ADMISSION if self._has_preempted else self.plan_for(view, first)

    def preemption_mode(self, sequence: Sequence, pressure: MemoryPressure) -> PreemptionMode:
        """Return the cheapest mode without swapping."""
        cheapest = super().preemption_mode(sequence, pressure)
        return PreemptionMode.RECOMPUTE if cheapest is PreemptionMode.SWAP else cheapest


class Sglang(Vllm):
    """`--enable-priority-scheduling` of SGLang.

    In addition to vLLM's order, a waiting sequence preempts running ones whose priority is lower by more than a
    threshold, lowest and latest first. Preempted sequences are recomputed.
    """

    name = "sglang"

    def plan_for_first(self, view: AdmissionView, first: Sequence) -> AdmissionPlan:
        """Plan for `first`, with preemption of lower classes."""

        def lower_classes() -> list[Sequence]:
            return [s for s in view.preemptible() if s.service_class > first.service_class]

        return self.plan_for(view, first, lower_classes)


@dataclass(slots=True, eq=False)
class QueuePlace:
    """Place of a sequence in FastServe's feedback queue."""

    level: int = 0
    quantum: float = 0.0  # tokens that are left on this level
    promoted_at: float = -math.inf  # when it last restarted at the top


def _place(sequence: Sequence) -> QueuePlace:
    place: QueuePlace = sequence.policy_state
    return place


class FastServe(_SingleQueue):
    """Skip-join multi-level feedback queue (FastServe, Wu et al., NSDI'26).

    A request joins the level whose quantum covers its prompt, and sinks one level each time it has used up its quantum.
    A sequence on a higher level preempts one on a lower level. A sequence that has waited too long restarts at the top.
    """

    name = "fastserve"
    NUM_LEVELS, QUANTUM_RATIO = 12, 2

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._alarms: list[tuple[float, int, Sequence]] = []  # when each sequence will have waited too long
        self._serial = count()

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return level, then arrival."""
        return (_place(sequence).level, sequence.arrival, sequence.choice)

    def push(self, sequence: Sequence) -> None:
        """Queue `sequence` on its level; a new one joins the level whose quantum covers its prompt."""
        if sequence.policy_state is None:
            sequence.policy_state = QueuePlace()
        place = _place(sequence)
        if place.quantum <= 0:
            steps = self.costs.prefill_seconds(sequence.prompt_len) / max(self.costs.decode_seconds, 1e-9)
            self._enter(place, math.ceil(math.log(max(steps, 1.0), self.QUANTUM_RATIO)))
        super().push(sequence)
        alarm = self._waiting_since(sequence) + self.config.max_wait_standard
        heapq.heappush(self._alarms, (alarm, next(self._serial), sequence))

    def begin_step(self, now: float) -> None:
        """Promote sequences that have waited too long."""
        while self._alarms and self._alarms[0][0] <= now:
            _, _, sequence = heapq.heappop(self._alarms)
            limit = self.config.max_wait_standard
            place, is_waiting = _place(sequence), sequence.state in (State.WAITING, State.PREEMPTED)
            if is_waiting and place.level and now - self._waiting_since(sequence) >= limit:
                self._waiting.remove(sequence)
                place.promoted_at = now
                self._enter(place, 0)
                self._waiting.add(sequence)

    @staticmethod
    def _waiting_since(sequence: Sequence) -> float:
        """Return when it began to wait on its level: when it was queued or promoted."""
        return max(sequence.waiting_since, _place(sequence).promoted_at)

    def plan_for_first(self, view: AdmissionView, first: Sequence) -> AdmissionPlan:
        """Plan for `first`, with preemption of sequences on lower levels."""

        def lower_levels() -> list[Sequence]:
            return [s for s in view.preemptible() if _place(s).level > _place(first).level]

        return self.plan_for(view, first, lower_levels)

    def tokens_sampled(self, sequences: Iterable[Sequence]) -> None:
        """Reduce quanta."""
        for sequence in sequences:
            place = _place(sequence)
            place.quantum -= 1.0
            if place.quantum <= 0 and sequence.state is State.RUNNING:
                self._enter(place, place.level + 1)

    def _enter(self, place: QueuePlace, level: int) -> None:
        place.level = min(self.NUM_LEVELS - 1, max(0, level))
        place.quantum = float(self.QUANTUM_RATIO**place.level)
