"""Waiting sequences: their counts, their admission by batching mode, and the status reported to them.

The policy keeps their order, and the scheduler knows which resource each of them lacks.
"""

from __future__ import annotations

from itertools import islice

from engine.config import EngineConfig
from engine.scheduling.batching_gate import Gate
from engine.scheduling.counters import ByClass
from engine.scheduling.events import News
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State
from engine.types import Cause, Phase

MAX_REPORTED_POSITIONS = 32  # number of waiting sequences that get updates of their position
# Causes of sequences that are not first in their queue; they can change while a sequence waits.
UPDATABLE_CAUSES = (Cause.ORDER, Cause.FAIRNESS, Cause.DEADLINE, Cause.BATCH)


class Waiting:
    """Waiting sequences, counted by class: new ones, and preempted ones."""

    def __init__(self, config: EngineConfig, policy: Policy, news: News) -> None:
        self.fresh, self.paused = ByClass(), ByClass()
        self._policy, self._news = policy, news
        self._gate = Gate(config)
        self._quota: int | None = None  # how many more sequences may be admitted in the step that is being scheduled
        self._arrived: list[Sequence] = []  # since the last step was scheduled

    def __len__(self) -> int:
        return sum(self.fresh.all()) + sum(self.paused.all())

    def push(self, sequence: Sequence, now: float) -> None:
        """Queue `sequence`."""
        self._policy.push(sequence)
        self._gate.arrive(sequence, now)
        self._counts_of(sequence).change(sequence.service_class, +1)
        if sequence.state is State.WAITING:
            self._arrived.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence` from the queue."""
        self._policy.remove(sequence)
        self._gate.leave(sequence)
        self._counts_of(sequence).change(sequence.service_class, -1)

    def let_in(self, sequence: Sequence) -> None:
        """Remove a sequence that is about to run."""
        self.remove(sequence)
        if self._quota is not None:
            self._quota -= 1

    def begin_step(self, running: int, now: float) -> None:
        """Prepare for the scheduling of a step, while `running` sequences run."""
        self._quota = self._gate.room(running, now)

    @property
    def is_shut(self) -> bool:
        """Return whether no further sequence is admitted in this step, independent of free resources."""
        return self._quota == 0

    @property
    def is_in_batches(self) -> bool:
        """Return whether sequences are admitted one whole batch at a time."""
        return not self._gate.is_always_open

    def opens_at(self, now: float) -> float:
        """Return when waiting sequences are admitted if no other sequence arrives and none runs."""
        return self._gate.opens_at(now)

    def tell_arrived(self, now: float) -> None:
        """Report the reason to sequences that arrived since the last step and were not admitted.

        Until now they waited for a step to be scheduled.
        """
        for sequence in self._arrived:
            if sequence.state is State.WAITING and sequence.cause is Cause.STEP:
                self._news.tell(sequence, Phase.QUEUED, now, self._wait_reason(sequence))
        self._arrived = []

    def tell_lack(self, sequence: Sequence, cause: Cause, now: float) -> None:
        """Report the missing resource to a sequence that is first in its queue."""
        if sequence.cause is not cause:
            sequence.told_position = 1 + self._policy.num_ahead(sequence)
            self._news.tell(sequence, sequence.phase, now, cause)

    def tell_positions(self, now: float) -> None:
        """Report changed positions and causes to the first few waiting sequences.

        The cost does not grow with the queue; sequences further back are updated when they come nearer.
        """
        for position, sequence in enumerate(islice(self._policy.in_order(), MAX_REPORTED_POSITIONS), start=1):
            cause = self._wait_reason(sequence) if sequence.cause in UPDATABLE_CAUSES else sequence.cause
            if sequence.told_position != position or sequence.cause is not cause:
                sequence.told_position = position
                self._news.tell(sequence, sequence.phase, now, cause)

    def _wait_reason(self, sequence: Sequence) -> Cause:
        return Cause.BATCH if self.is_shut else self._policy.why_waits(sequence)

    def _counts_of(self, sequence: Sequence) -> ByClass:
        return self.paused if sequence.state is State.PAUSED else self.fresh
