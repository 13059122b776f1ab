"""Waiting sequences: their counts, their admission by batching mode, and the status reported to them.

The policy keeps their order, and its plans name the resource that the first ones lack.
"""

from __future__ import annotations

from itertools import islice

from engine.config import EngineConfig
from engine.scheduling.admission import Shortage
from engine.scheduling.batching_gate import BatchingGate
from engine.scheduling.counters import ClassCounts
from engine.scheduling.events import EventBuffer
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State
from engine.types import Phase, WaitReason

MAX_REPORTED_POSITIONS = 32  # number of waiting sequences that get updates of their position
# Causes of sequences that are not first in their queue; they can change while a sequence waits.
UPDATABLE_CAUSES = (WaitReason.ORDER, WaitReason.FAIRNESS, WaitReason.DEADLINE, WaitReason.BATCH)


class WaitQueue:
    """Waiting sequences, counted by class: new ones, and preempted ones."""

    def __init__(self, config: EngineConfig, policy: Policy, events: EventBuffer) -> None:
        self.new, self.paused = ClassCounts(), ClassCounts()
        self._policy, self._events = policy, events
        self._gate = BatchingGate(config)
        self._quota: int | None = None  # how many more sequences may be admitted in the step that is being scheduled
        self._arrived: list[Sequence] = []  # since the last step was scheduled

    def __len__(self) -> int:
        return sum(self.new.as_tuple()) + sum(self.paused.as_tuple())

    def push(self, sequence: Sequence, now: float) -> None:
        """Queue `sequence`."""
        self._policy.push(sequence)
        self._gate.add(sequence, now)
        self._counts_of(sequence).add(sequence.service_class, +1)
        if sequence.state is State.WAITING:
            self._arrived.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove `sequence` from the queue."""
        self._policy.remove(sequence)
        self._gate.remove(sequence)
        self._counts_of(sequence).add(sequence.service_class, -1)

    def admit(self, sequence: Sequence) -> None:
        """Remove a sequence that is about to run."""
        self.remove(sequence)
        if self._quota is not None:
            self._quota -= 1

    def begin_step(self, running: int, now: float) -> None:
        """Prepare for the scheduling of a step, while `running` sequences run."""
        self._quota = self._gate.admission_quota(running, now)

    @property
    def is_closed(self) -> bool:
        """Return whether no further sequence is admitted in this step, independent of free resources."""
        return self._quota == 0

    @property
    def admits_batches(self) -> bool:
        """Return whether sequences are admitted one whole batch at a time."""
        return not self._gate.is_continuous

    def opens_at(self, now: float) -> float:
        """Return when waiting sequences are admitted if no other sequence arrives and none runs."""
        return self._gate.opens_at(now)

    def report_arrivals(self, now: float) -> None:
        """Report the reason to sequences that arrived since the last step and were not admitted.

        Until now they waited for a step to be scheduled.
        """
        for sequence in self._arrived:
            if sequence.state is State.WAITING and sequence.cause is WaitReason.STEP:
                self._events.status(sequence, Phase.QUEUED, now, self._wait_reason(sequence))
        self._arrived = []

    def report_shortage(self, shortage: Shortage, now: float) -> None:
        """Report the missing resource to a sequence that is first in its queue."""
        sequence = shortage.sequence
        if sequence.cause is not shortage.cause:
            sequence.reported_position = 1 + self._policy.num_ahead(sequence)
            self._events.status(sequence, sequence.phase, now, shortage.cause)

    def report_positions(self, now: float) -> None:
        """Report changed positions and causes to the first few waiting sequences.

        The cost does not grow with the queue; sequences further back are updated when they come nearer.
        """
        for position, sequence in enumerate(islice(self._policy.in_order(), MAX_REPORTED_POSITIONS), start=1):
            cause = self._wait_reason(sequence) if sequence.cause in UPDATABLE_CAUSES else sequence.cause
            if sequence.reported_position != position or sequence.cause is not cause:
                sequence.reported_position = position
                self._events.status(sequence, sequence.phase, now, cause)

    def _wait_reason(self, sequence: Sequence) -> WaitReason:
        return WaitReason.BATCH if self.is_closed else self._policy.wait_reason(sequence)

    def _counts_of(self, sequence: Sequence) -> ClassCounts:
        return self.paused if sequence.state is State.PREEMPTED else self.new
