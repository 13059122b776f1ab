"""Waiting: everybody who waits, for a first slot or to go on; whether they may be let in; and what they are told.

Owns who is counted as waiting. In which order they wait the policy knows, and what each of them lacks the scheduler.
"""

from __future__ import annotations

from itertools import islice

from engine.config import EngineConfig
from engine.scheduling.books import ByClass
from engine.scheduling.gate import Gate
from engine.scheduling.news import News
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State
from engine.types import Cause, Phase

POSITIONS_TOLD = 32  # how many of those who wait are told their place when it changes
FORESEEABLE = (Cause.ORDER, Cause.FAIRNESS, Cause.DEADLINE, Cause.BATCH)  # of who is not the first of its line


class Waiting:
    """Who waits, by class: those who never ran, and those who were paused."""

    def __init__(self, config: EngineConfig, policy: Policy, news: News) -> None:
        self.fresh, self.paused = ByClass(), ByClass()
        self._policy, self._news = policy, news
        self._gate = Gate(config)
        self._room: int | None = None  # how many more may be let in in the step that is being decided
        self._arrived: list[Sequence] = []  # since the last step was decided

    def __len__(self) -> int:
        return sum(self.fresh.all()) + sum(self.paused.all())

    def push(self, sequence: Sequence, now: float) -> None:
        """It waits from now on."""
        self._policy.push(sequence)
        self._gate.arrive(sequence, now)
        self._counted(sequence).change(sequence.service_class, +1)
        if sequence.state is State.WAITING:
            self._arrived.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It is gone."""
        self._policy.remove(sequence)
        self._gate.leave(sequence)
        self._counted(sequence).change(sequence.service_class, -1)

    def let_in(self, sequence: Sequence) -> None:
        """It is about to run."""
        self.remove(sequence)
        if self._room is not None:
            self._room -= 1

    def begin_step(self, running: int, now: float) -> None:
        """A step is about to be decided, while so many run."""
        self._room = self._gate.room(running, now)

    @property
    def is_shut(self) -> bool:
        """Whether nobody else is let in in this step, whatever is free."""
        return self._room == 0

    @property
    def is_in_batches(self) -> bool:
        """Whether a batch is let in at a time, and nobody until all of it have left."""
        return not self._gate.is_always_open

    def opens_at(self, now: float) -> float:
        """When those who wait are let in, if nobody else comes and nobody runs."""
        return self._gate.opens_at(now)

    def tell_arrived(self, now: float) -> None:
        """Who came since the last step and was not let in hears why; until then it waited for a step to be decided."""
        for sequence in self._arrived:
            if sequence.state is State.WAITING and sequence.cause is Cause.STEP:
                self._news.tell(sequence, Phase.QUEUED, now, self._why(sequence))
        self._arrived = []

    def tell_lack(self, sequence: Sequence, cause: Cause, now: float) -> None:
        """It is the first of its line, and lacks something."""
        if sequence.cause is not cause:
            sequence.told_position = 1 + self._policy.num_ahead(sequence)
            self._news.tell(sequence, sequence.phase, now, cause)

    def tell_positions(self, now: float) -> None:
        """Tell the first few their place and what keeps them, where that changed since they last heard. The cost does
        not grow with the queue; whoever is further back than that is told once it comes nearer."""
        for position, sequence in enumerate(islice(self._policy.in_order(), POSITIONS_TOLD), start=1):
            cause = self._why(sequence) if sequence.cause in FORESEEABLE else sequence.cause
            if sequence.told_position != position or sequence.cause is not cause:
                sequence.told_position = position
                self._news.tell(sequence, sequence.phase, now, cause)

    def _why(self, sequence: Sequence) -> Cause:
        return Cause.BATCH if self.is_shut else self._policy.why_waits(sequence)

    def _counted(self, sequence: Sequence) -> ByClass:
        return self.paused if sequence.state is State.PAUSED else self.fresh
