"""What comparable systems do, as far as a policy goes, on our slots, pages and kernels: rows of a comparison.

Where they have integer priorities and no classes, a class counts as a difference of priority that is large enough.
Deadlines are kept by the scheduler whatever the policy; fairness among tenants is ours alone.
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
from engine.scheduling.policy import MOST_TOKENS, Policy, Pressure, Stage
from engine.scheduling.sequence import Sequence, State
from engine.types import Mechanism


class _Line(Policy):
    """One queue, ordered by `rank`."""

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._waiting: SortedKeyList[Sequence, Any] = SortedKeyList(key=self.rank)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Who goes first: lower does. Must not change while it waits."""
        return (sequence.arrival, sequence.choice)

    def push(self, sequence: Sequence) -> None:
        """By rank; whoever was paused has its old rank."""
        self._waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """From the line."""
        self._waiting.remove(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """As ranked."""
        return iter(self._waiting)

    def admit(self, stage: Stage, now: float) -> None:
        """Until one does not fit; nobody is paused for those who wait."""
        while self._waiting and stage.try_start(self._waiting[0]):
            pass

    def service_order(self, sequence: Sequence) -> tuple[Any, ...]:
        """As they came."""
        return (sequence.arrival, sequence.choice)

    def may_make_way(self, growing: Sequence, running: Iterable[Sequence]) -> list[Sequence]:
        """Anybody."""
        return list(running)

    def victim(self, candidates: Iterable[Sequence], pressure: Pressure) -> Sequence:
        """The last by rank."""
        return max(candidates, key=self.rank)

    def why_victim(self, victim: Sequence, made_for: Sequence | None) -> str:
        """By rank."""
        return "it was the last of those who ran"


class Orca(_Line):
    """Iteration-level first come, first served (Orca, Yu et al., OSDI'22): memory for the longest possible answer is
    set aside when a request is let in, so nobody is ever paused; a prompt is read in one step."""

    name = "orca"

    def admit(self, stage: Stage, now: float) -> None:
        """As long as everybody's longest answer fits."""
        size = self.config.tokens_per_page

        def still_to_come(sequence: Sequence, has: int) -> int:
            return -(-sequence.most_tokens // size) - has

        promised = sum(still_to_come(s, len(s.page_table)) for s in stage.running)
        while self._waiting:
            first: Sequence = self._waiting[0]
            promised += still_to_come(first, first.pages_needed)
            if not stage.try_start(first, margin=promised if stage.running else 0):
                return

    def prompt_tokens(self, decodes: int, riding: int = 0, seconds: float = 0.0) -> int:
        """No budget but what the machine takes."""
        if self.config.max_num_batched_tokens is not None:
            return self.config.max_num_batched_tokens - decodes
        return MOST_TOKENS - decodes


class Vllm(_Line):
    """`--scheduling-policy priority` of vLLM V1 (0.10 and later): the queue is ordered by priority, then arrival. Who
    waits pauses nobody for a slot; when memory runs short the last by that order is paused, dropped and computed again,
    and nobody is let in in that step."""

    name = "vllm"

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._has_paused = False

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Priority, then arrival."""
        return (sequence.service_class, sequence.request.priority, sequence.arrival, sequence.choice)

    def begin_step(self, now: float) -> None:
        """Nobody was paused in it yet."""
        self._has_paused = False

    def paused(self, sequence: Sequence) -> None:
        """Memory ran short."""
        self._has_paused = True

    def admit(self, stage: Stage, now: float) -> None:
        """Unless somebody was just paused."""
        if not self._has_paused:
            super().admit(stage, now)

    def mechanism(self, sequence: Sequence, pressure: Pressure) -> Mechanism:
        """There is no swapping."""
        cheapest = super().mechanism(sequence, pressure)
        return Mechanism.RECOMPUTE if cheapest is Mechanism.SWAP else cheapest


class Sglang(Vllm):
    """`--enable-priority-scheduling` of SGLang: besides the order, who waits pauses running ones whose priority is
    lower by more than a threshold, lowest and latest first; these are dropped and computed again."""

    name = "sglang"

    def admit(self, stage: Stage, now: float) -> None:
        """Until one does not fit even so."""
        while self._waiting:
            first: Sequence = self._waiting[0]
            if not stage.try_start(first, partial(self._lower, stage, first)):
                return

    @staticmethod
    def _lower(stage: Stage, first: Sequence) -> list[Sequence]:
        return [s for s in stage.movable() if s.service_class > first.service_class]


class FastServe(_Line):
    """Skip-join multi-level feedback queue (FastServe, Wu et al., NSDI'26): a request joins the level whose quantum its
    prompt takes, sinks a level whenever it has used one up, and whoever is on a higher level takes the slot of whoever
    is on a lower one. Who waited too long starts at the top again."""

    name = "fastserve"
    LEVELS, RATIO = 12, 2

    def __init__(self, config: EngineConfig, costs: Costs) -> None:
        super().__init__(config, costs)
        self._alarms: list[tuple[float, int, Sequence]] = []  # when each will have waited too long
        self._serial = count()

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """Level, then arrival."""
        return (sequence.level, sequence.arrival, sequence.choice)

    def push(self, sequence: Sequence) -> None:
        """On the level it had; whoever is new joins the one whose quantum its prompt takes."""
        if sequence.quantum <= 0:
            steps = self.costs.prefill_seconds(sequence.prompt_len) / max(self.costs.decode_seconds, 1e-9)
            self._enter(sequence, math.ceil(math.log(max(steps, 1.0), self.RATIO)))
        super().push(sequence)
        alarm = sequence.waiting_since + self.config.max_wait_standard
        heapq.heappush(self._alarms, (alarm, next(self._serial), sequence))

    def begin_step(self, now: float) -> None:
        """Promote who waited too long."""
        while self._alarms and self._alarms[0][0] <= now:
            _, _, sequence = heapq.heappop(self._alarms)
            limit = self.config.max_wait_standard
            waits = sequence.state in (State.WAITING, State.PAUSED)
            if waits and sequence.level and now - sequence.waiting_since >= limit:
                self._waiting.remove(sequence)
                sequence.waiting_since = now
                self._enter(sequence, 0)
                self._waiting.add(sequence)

    def admit(self, stage: Stage, now: float) -> None:
        """Whoever is on a higher level than one who runs takes its slot."""
        while self._waiting:
            first: Sequence = self._waiting[0]
            if not stage.try_start(first, partial(self._lower, stage, first)):
                return

    @staticmethod
    def _lower(stage: Stage, first: Sequence) -> list[Sequence]:
        return [s for s in stage.movable() if s.level > first.level]

    def served(self, sequences: Iterable[Sequence]) -> None:
        """Quanta run down."""
        for sequence in sequences:
            sequence.quantum -= 1.0
            if sequence.quantum <= 0 and sequence.state is State.RUNNING:
                self._enter(sequence, sequence.level + 1)

    def _enter(self, sequence: Sequence, level: int) -> None:
        sequence.level = min(self.LEVELS - 1, max(0, level))
        sequence.quantum = float(self.RATIO**sequence.level)
