"""Discrete-event simulation of engines behind several API processes.

Real are the engine with its scheduler, policy and pages, and the requests in flight, router and queue of each API
process. Simulated are the clock, the forward pass and the network. An engine's load travels with the events of its
step, as in the server: both reach the API processes `age` seconds later. An API process knows at once what it sends.
Times of tokens are those at the engine.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from app.engine_client.channel_clock import ChannelClock
from app.engine_client.member_counts import ReadyMember
from benchmarks.fleet.answers import Answer
from benchmarks.fleet.api_process import SimulatedApi
from benchmarks.fleet.member import SimulatedMember
from engine.config import DEFAULT_PAGE_SIZE, EngineConfig
from engine.engine import Engine
from engine.prefixes import PrefixChanges
from engine.simulation import Clock, StepCost, simulated_engine
from engine.types import Event, Request

GIVEN = StepCost(step=0.004, decode=0.0001, prompt=0.00002, swapped_page=0.00002)  # roughly a small model on a GPU


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Sizes of a fleet and properties of its engines."""

    engines: int
    api_processes: int = 4
    slots: int = 16
    pages: int = 1024  # of each engine's KV cache
    max_len: int = 8192  # tokens of a sequence
    cost: StepCost = GIVEN
    age: float = 0.0  # seconds that loads and events of engines are under way
    restart_seconds: float = 5.0  # from an engine's death until its replacement is ready
    caches_prefixes: bool = False

    def make_engine(self, clock: Clock) -> Engine:
        """Return an engine on a clock."""
        config = EngineConfig(
            model="none", max_num_seqs=self.slots, enable_prefix_caching=self.caches_prefixes
        ).validate()
        pages = self.pages
        return simulated_engine(config, self.cost, clock, num_pages=pages, host_pages=4 * pages, max_len=self.max_len)


class Fleet:
    """Engines, API processes and one heap of what happens next."""

    def __init__(self, shape: FleetShape, seed: int = 0) -> None:
        self.shape = shape
        self.clock = Clock()
        self.poisons: set[str] = set()
        self.answers: list[Answer] = []
        self.draw = random.Random(f"fleet{seed}")
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = count()
        self._owners: dict[str, SimulatedApi] = {}
        self._channel_clock = ChannelClock(is_shared=True)
        self.members = [
            SimulatedMember(index, shape.make_engine, self, shape.api_processes) for index in range(shape.engines)
        ]
        self._trials: dict[int, str] = {}  # requests that members' engines compute alone, as last received
        self._ready = {member.index: member.ready for member in self.members}
        self.apis = [SimulatedApi(self, random.Random(f"api{seed}.{index}")) for index in range(shape.api_processes)]

    @property
    def tokens(self) -> int:
        """Return the tokens that clients have received."""
        return sum(answer.tokens for answer in self.answers)

    # Events -----------------------------------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time; actions of the same time are called in the order of these calls."""
        heapq.heappush(self._heap, (when, next(self._serials), action))

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen up to a time; by default until nothing is left to do."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.clock.now, _, action = heapq.heappop(heap)
            action()

    def receive(self, arrivals: Iterable[tuple[float, Request]]) -> None:
        """Let requests arrive at their times (in seconds, sorted), each at a random API process."""
        self._expect_arrival(iter(arrivals))

    def submit(self, request: Request, on_end: Callable[[], None] | None = None) -> Answer:
        """Let a request arrive now. on_end: called with its last token."""
        answer = Answer(request, self.clock.now, self._token_time, on_end)
        self.answers.append(answer)
        api = self._owners[request.id] = self.draw.choice(self.apis)
        api.submit(request, answer.receive)
        return answer

    def _expect_arrival(self, arrivals: Iterator[tuple[float, Request]]) -> None:
        if (arrival := next(arrivals, None)) is not None:
            self.at(arrival[0], partial(self._arrive, arrival[1], arrivals))

    def _arrive(self, request: Request, arrivals: Iterator[tuple[float, Request]]) -> None:
        self.submit(request)
        self._expect_arrival(arrivals)

    # What API processes see -------------------------------------------------------------------------------------------

    def ready_members(self) -> list[ReadyMember]:
        """Return the members with an engine, with their last reports that have arrived."""
        return list(self._ready.values())

    def send(self, index: int, requests: Sequence[Request]) -> None:
        """Send requests to a member's engine."""
        self.members[index].send(requests)

    # What members report ----------------------------------------------------------------------------------------------

    def send_frame(
        self, member: SimulatedMember, events: Sequence[Event], prefixes: PrefixChanges | None, trial: str
    ) -> None:
        """Send the load of a member, its trial, the events of its step, and changes of its prefix cache."""
        self._later(partial(self._receive_frame, member.ready, events, prefixes, trial))

    def lose(self, member: SimulatedMember) -> None:
        """Let the API processes know that an engine has died, after its last frame."""
        self._later(partial(self._move, member))

    def _later(self, action: Callable[[], None]) -> None:
        """Call `action` when what is sent now arrives."""
        if self.shape.age:
            self.at(self.clock.now + self.shape.age, action)
        else:
            action()

    def _receive_frame(
        self, ready: ReadyMember, events: Sequence[Event], prefixes: PrefixChanges | None, trial: str
    ) -> None:
        self._ready[ready.index] = ready
        if trial != self._trials.get(ready.index, ""):
            self._trials[ready.index] = trial
            for api in self.apis:
                api.note_trial(ready.index, trial)
        if prefixes is not None:
            for api in self.apis:
                api.in_flight.prefixes.update(ready.index, prefixes, DEFAULT_PAGE_SIZE)
        owners = self._owners
        for event in self._channel_clock.from_engine(tuple(events)):
            owners[event.request_id].handle(event)
        for api in self.apis:
            api.on_step(ready)

    def _move(self, member: SimulatedMember) -> None:
        """Move the requests of a dead engine, and start another one in its place."""
        del self._ready[member.index]
        self._trials.pop(member.index, None)
        for api in self.apis:
            api.lose_engine(member.index)
        self.at(self.clock.now + self.shape.restart_seconds, partial(self._restart, member))

    def _restart(self, member: SimulatedMember) -> None:
        member.start()
        self._ready[member.index] = member.ready
        for api in self.apis:
            api.send_waiting()

    def _token_time(self) -> float:
        """Return the time at which an engine sent what arrives now."""
        return self.clock.now - self.shape.age
