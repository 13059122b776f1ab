"""SimulatedApi: one API process of a simulated fleet, with the requests in flight and the router of a real one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.in_flight import InFlight
from app.engine_client.in_flight_request import Sink
from app.engine_client.member_counts import ReadyMember
from engine.simulation import Clock
from engine.types import Request


class Network(Protocol):
    """Fleet, as an API process sees it."""

    clock: Clock

    def ready_members(self) -> list[ReadyMember]:
        """Return the members with an engine, with their load reports of some time ago."""

    def send(self, index: int, requests: Sequence[Request]) -> None:
        """Send requests to a member's engine."""


class SimulatedApi:
    """Does with requests in flight what `EngineClient` does, on a simulated clock and without sockets."""

    def __init__(self, network: Network, draw: random.Random) -> None:
        self.in_flight = InFlight(draw, network.clock, has_several=True)
        self._network = network

    def submit(self, request: Request, sink: Sink) -> None:
        """Send a request to an engine, or let it wait."""
        self.in_flight.add(request, sink)
        self.send_waiting()

    def handle(self, event: ReceivedEvent) -> None:
        """Pass on an event of one of its requests."""
        if self.in_flight.handle(event):
            self.send_waiting()

    def note_trial(self, index: int, request_id: str) -> None:
        """Note the request that a member's engine computes alone, before the events of that frame."""
        self.in_flight.note_trial(index, request_id)

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
