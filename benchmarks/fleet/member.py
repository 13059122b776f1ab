"""SimulatedMember: one engine of a simulated fleet, from its start to its death, and the end of its current step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from app.engine_client.member_counts import ReadyMember
from engine.engine import Engine
from engine.load import Counters, EngineLoad, PageCounts
from engine.prefixes import PrefixChanges
from engine.simulation import Clock
from engine.types import Event, Request

# Reports of a simulated engine have the parts that the router reads.
NO_PAGES, NO_COUNTERS = PageCounts(0, 0, 0, 0, 0, 0), Counters()

Demand = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]  # running, waiting, paused


class MemberOwner(Protocol):
    """Fleet, as a member sees it."""

    clock: Clock
    poisons: set[str]

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time."""

    def send_frame(
        self, member: SimulatedMember, events: Sequence[Event], prefixes: PrefixChanges | None, trial: str
    ) -> None:
        """Send events to the API processes that have the requests, and to all `member.ready`, the trial and changes of
        its prefix cache.
        """

    def lose(self, member: SimulatedMember) -> None:
        """Handle the death of the engine."""


class SimulatedMember:
    """One engine at a time. A step begins when the previous one has ended, with the requests that were sent since."""

    def __init__(
        self, index: int, make_engine: Callable[[Clock], Engine], owner: MemberOwner, connections: int
    ) -> None:
        """connections: of API processes."""
        self.index = index
        self._connections = connections
        self.deaths = 0
        self.poison_deaths = 0
        self.busy_seconds = 0.0
        self.steps = 0
        self._make_engine = make_engine
        self._owner = owner
        self._clock = Clock()
        self.start()

    def start(self) -> None:
        """Start an engine, which is ready at once."""
        self._inbox: list[Request] = []
        self._poisons: list[str] = []  # requests in this engine that kill it when they are computed
        self._is_stepping = False
        self._demand: Demand | None = None
        self.engine: Engine | None = self._make_engine(self._clock)
        self._marks = self.engine.scheduler.kv_manager.pool.marks
        self._marks.take_changes()  # records them from now on
        self.ready = ReadyMember(self.index, self.engine.config.max_num_seqs, None)

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests to the engine, which reads them before its next step."""
        if self.engine is None:  # they move when its death becomes known
            return
        self._inbox += requests
        if not self._is_stepping:
            self._is_stepping = True
            self._owner.at(self._owner.clock.now, partial(self._begin_step, self.deaths))

    def die(self) -> None:
        """End the engine, with the step in progress."""
        if self.engine is not None:
            self.deaths += 1
            self.engine = None
            self._owner.lose(self)

    def _begin_step(self, deaths: int) -> None:
        """Begin a step, unless the engine died meanwhile. deaths: at the time of the call's planning."""
        if deaths != self.deaths or self.engine is None:
            return
        engine, inbox = self.engine, self._inbox
        self._clock.now = self._owner.clock.now
        if inbox:
            for request in inbox:
                engine.submit(request)
                if request.id in self._owner.poisons:
                    self._poisons.append(request.id)
            inbox.clear()
        if not engine.has_work:
            self._is_stepping = False
            return
        events = engine.step(self._on_launch)
        assert self._clock.now > self._owner.clock.now, "a step takes time"
        self.steps += 1
        self.busy_seconds += self._clock.now - self._owner.clock.now
        if self._poisons and self._computes_poison(engine):
            self._owner.at(self._clock.now, partial(self._die_in_step, deaths))
        else:
            demand = self._current_demand(engine)
            self._owner.at(self._clock.now, partial(self._end_step, deaths, events, demand, engine.trial))

    def _on_launch(self, events: list[Event]) -> None:
        """Send the events of an admission and the trial, which an engine does before it computes."""
        if self.engine is not None:
            self._send_frame(events, self._current_demand(self.engine), self.engine.trial)

    def _end_step(self, deaths: int, events: list[Event], demand: Demand, trial: str) -> None:
        if deaths == self.deaths:
            self._send_frame(events, demand, trial)
            self._begin_step(deaths)

    def _die_in_step(self, deaths: int) -> None:
        if deaths == self.deaths:
            self.poison_deaths += 1
            self.die()

    def _computes_poison(self, engine: Engine) -> bool:
        sequences = (engine.scheduler.requests.get(request_id) for request_id in self._poisons)
        is_held = engine.scheduler.trials.is_held
        return any(choices and choices[0].slot is not None and not is_held(choices[0]) for choices in sequences)

    def _current_demand(self, engine: Engine) -> Demand:
        scheduler = engine.scheduler
        waiting = scheduler.waiting
        return scheduler.batch_slots.by_class.as_tuple(), waiting.new.as_tuple(), waiting.paused.as_tuple()

    def _send_frame(self, events: Sequence[Event], demand: Demand, trial: str) -> None:
        if demand != self._demand:
            self._demand = demand
            load = EngineLoad(*demand, NO_PAGES, NO_COUNTERS)
            self.ready = ReadyMember(self.index, self.ready.slots, load, self._connections)
        self._owner.send_frame(self, events, self._marks.take_changes(), trial)
