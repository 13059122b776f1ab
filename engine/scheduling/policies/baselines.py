"""Policies of comparable systems, on our slots, pages and kernels, as rows of a comparison.

Where such a system has integer priorities instead of classes, a class counts as a large enough difference of priority.
The scheduler enforces deadlines under every policy; only the carousel policy has fairness among tenants.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

from sortedcontainers import SortedKeyList

from engine.config import EngineConfig
from engine.scheduling.costs import Costs
from engine.scheduling.policy import MAX_STEP_TOKENS, AdmissionContext, MemoryPressure, Policy
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

    def admit(self, stage: AdmissionContext, now: float) -> None:
        """Admit until a sequence does not fit; no sequence is preempted for a waiting one."""
        while self._waiting and stage.try_start(self._waiting[0]):
            pass

    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return the order of arrival."""
        return (sequence.arrival, sequence.choice)

    def preemption_candidates(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Return all running sequences."""
        return list(running)

    def victim(self, candidates: Iterable[Sequence], pressure: MemoryPressure) -> Sequence:
        """Return the last sequence by rank."""
        return max(candidates, key=self.rank)

    def victim_reason(self, victim: Sequence, made_for: Sequence | None) -> str:
        """Return the fixed reason: last by rank."""
        return "it was the last in order of the running sequences"


class Orca(_SingleQueue):
    """Iteration-level first come, first served (Orca, Yu et al., OSDI'22).

    Memory for the longest possible answer is reserved at admission, so no sequence is ever preempted. A prompt is read
    in one step.
    """

    name = "orca"

    def admit(self, stage: AdmissionContext, now: float) -> None:
        """Admit as long as the longest possible answers of all running sequences fit."""
        size = self.config.tokens_per_page

        def pages_to_come(sequence: Sequence, held: int) -> int:
            return -(-sequence.max_len // size) - held

        reserved = sum(pages_to_come(s, len(s.page_table)) for s in stage.running)
        while self._waiting:
            first: Sequence = self._waiting[0]
            reserved += pages_to_come(first, first.pages_needed)
            if not stage.try_start(first, margin=reserved if stage.running else 0):
                return

    def prompt_tokens(self, decodes: int, riding: int = 0, seconds: float = 0.0) -> int:
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
        self._has_paused = False

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Return priority, then arrival."""
        return (sequence.service_class, sequence.request.priority, sequence.arrival, sequence.choice)

    def begin_step(self, now: float) -> None:
        """Reset the flag for preemptions in this step."""
        self._has_paused = False

    def on_preempted(self, sequence: Sequence) -> None:
        """Note that a sequence was preempted for memory in this step."""
        self._has_paused = True

    def admit(self, stage: AdmissionContext, now: float) -> None:
        """Admit unless a sequence was preempted in this step."""
        if not self._has_paused:
            super().admit(stage, now)

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

    def admit(self, stage: AdmissionContext, now: float) -> None:
        """Admit, with preemption of lower classes, until a sequence does not fit."""
        while self._waiting:
            first: Sequence = self._waiting[0]
            if not stage.try_start(first, partial(self._lower_classes, stage, first)):
                return

    @staticmethod
    def _lower_classes(stage: AdmissionContext, first: Sequence) -> list[Sequence]:
        return [s for s in stage.preemptible() if s.service_class > first.service_class]


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
        return (sequence.level, sequence.arrival, sequence.choice)

    def push(self, sequence: Sequence) -> None:
        """Queue `sequence` on its level; a new one joins the level whose quantum covers its prompt."""
        if sequence.quantum <= 0:
            steps = self.costs.prefill_seconds(sequence.prompt_len) / max(self.costs.decode_seconds, 1e-9)
            self._enter(sequence, math.ceil(math.log(max(steps, 1.0), self.QUANTUM_RATIO)))
        super().push(sequence)
        alarm = sequence.waiting_since + self.config.max_wait_standard
        heapq.heappush(self._alarms, (alarm, next(self._serial), sequence))

    def begin_step(self, now: float) -> None:
        """Promote sequences that have waited too long."""
        while self._alarms and self._alarms[0][0] <= now:
            _, _, sequence = heapq.heappop(self._alarms)
            limit = self.config.max_wait_standard
            is_waiting = sequence.state in (State.WAITING, State.PREEMPTED)
            if is_waiting and sequence.level and now - sequence.waiting_since >= limit:
                self._waiting.remove(sequence)
                sequence.waiting_since = now
                self._enter(sequence, 0)
                self._waiting.add(sequence)

    def admit(self, stage: AdmissionContext, now: float) -> None:
        """Admit, with preemption of sequences on lower levels, until a sequence does not fit."""
        while self._waiting:
            first: Sequence = self._waiting[0]
            if not stage.try_start(first, partial(self._lower_levels, stage, first)):
                return

    @staticmethod
    def _lower_levels(stage: AdmissionContext, first: Sequence) -> list[Sequence]:
        return [s for s in stage.preemptible() if s.level > first.level]

    def tokens_sampled(self, sequences: Iterable[Sequence]) -> None:
        """Reduce quanta."""
        for sequence in sequences:
            sequence.quantum -= 1.0
            if sequence.quantum <= 0 and sequence.state is State.RUNNING:
                self._enter(sequence, sequence.level + 1)

    def _enter(self, sequence: Sequence, level: int) -> None:
        sequence.level = min(self.NUM_LEVELS - 1, max(0, level))
        sequence.quantum = float(self.QUANTUM_RATIO**sequence.level)
