"""SimulatedApi: one API process of a simulated fleet, with the requests in flight and the router of a real one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.client import MAX_TRIAL_WAIT_SECONDS
from app.engine_client.in_flight import InFlight
from app.engine_client.in_flight_request import Sink
from app.engine_client.member_counts import ReadyMember
from engine.simulation import Clock
from engine.types import Request


class Network(Protocol):
    """Fleet, as an API process sees it."""

    clock: Clock

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time."""

    def ready_members(self) -> list[ReadyMember]:
        """Return the members with an engine, with their load reports of some time ago."""

    def send(self, index: int, requests: Sequence[Request]) -> None:
        """Send requests to a member's engine."""


class SimulatedApi:
    """Does with requests in flight what `EngineClient` does, on a simulated clock and without sockets."""

    def __init__(self, engines: int, network: Network, draw: random.Random) -> None:
        self.in_flight = InFlight(draw, network.clock, has_several=True)
        self._engines = engines
        self._network = network
        self._trial_timers = 0  # serial number of the last one
        self._expects_trial = False

    def submit(self, request: Request, sink: Sink) -> None:
        """Send a request to an engine, or let it wait."""
        self.in_flight.add(request, sink)
        self.send_waiting()

    def handle(self, event: ReceivedEvent) -> None:
        """Pass on an event of one of its requests."""
        if self.in_flight.handle(event):
            self.send_waiting()

    def on_step(self, member: ReadyMember) -> None:
        """Send requests that are bound late, after the events of a member's step.

        Only that member can have room for them: those with room got theirs before.
        """
        if self.in_flight.waiting.late:
            self._send_waiting_to([member])

    def lose_engine(self, index: int) -> None:
        """Move the requests of a member whose engine has died."""
        self.in_flight.lose_engine(index)
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send the requests that a member takes."""
        self._send_waiting_to(self._network.ready_members())

    def _send_waiting_to(self, ready: Sequence[ReadyMember]) -> None:
        for index, requests in self.in_flight.requests_to_send(ready).items():
            self._network.send(index, requests)
        self._expect_trial()

    def _expect_trial(self) -> None:
        """Reserve a member in a while, if a suspect still waits for its trial then."""
        is_needed = self._engines > 1 and self.in_flight.has_waiting_suspect
        if is_needed and not self._expects_trial:
            self._trial_timers += 1
            serial = self._trial_timers
            self._network.at(self._network.clock.now + MAX_TRIAL_WAIT_SECONDS, lambda: self._reserve_member(serial))
        self._expects_trial = is_needed

    def _reserve_member(self, serial: int) -> None:
        if self._expects_trial and serial == self._trial_timers:
            self._expects_trial = False
            self.in_flight.reserve_member(self._network.ready_members())
            self.send_waiting()
