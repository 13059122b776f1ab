"""CPU time of a routing decision: a request from its arrival until its engine is chosen."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.in_flight import InFlight
from app.engine_client.member_counts import ReadyMember
from app.engine_client.router import MemberLoad, choose_member
from benchmarks.fleet.arrivals import make_request
from benchmarks.fleet.member import NO_COUNTERS, NO_PAGES
from engine.load import EngineLoad
from engine.types import Event, FinishReason, ServiceClass, TokenEvent

CANDIDATES, SLOTS, DECISIONS = 64, 16, 4000
FULL_SHARE = 0.9  # of the candidates, which have no free slot


def decision_microseconds(candidates: int = CANDIDATES, decisions: int = DECISIONS) -> dict[str, float]:
    """Return the mean microseconds of a decision by class, and of the router's function alone.

    The former is of `InFlight.requests_to_send` with a single waiting request: it computes the members' loads and
    marks the request as sent.
    """
    draw = random.Random("decisions")
    ready = [ReadyMember(index, SLOTS, _report(draw)) for index in range(candidates)]
    found: dict[str, float] = {}
    for service_class in ServiceClass:
        in_flight = InFlight(draw, has_several=True)
        seconds = 0.0
        for number in range(decisions):
            in_flight.add(make_request(str(number), (5,), 1, service_class), _ignore)
            began = time.process_time()
            (sent,) = in_flight.requests_to_send(ready).values()
            seconds += time.process_time() - began
            for event in _ends(sent[0].id):
                in_flight.handle(event)
        found[service_class.label] = 1e6 * seconds / decisions
    loads = {m.index: MemberLoad(m.index, m.slots, m.report.running) for m in ready if m.report is not None}
    members = list(loads)
    began = time.process_time()
    for _ in range(decisions):
        choose_member(members, loads.__getitem__, ServiceClass.STANDARD, draw)
    found["choose_member"] = 1e6 * (time.process_time() - began) / decisions
    return found


def _report(draw: random.Random) -> EngineLoad:
    running = SLOTS if draw.random() < FULL_SHARE else SLOTS - 2
    waiting = draw.randrange(4) if running == SLOTS else 0
    return EngineLoad((2, running // 2 - 2, running - running // 2), (0, 0, waiting), (0, 0, 0), NO_PAGES, NO_COUNTERS)


def _ends(request_id: str) -> Iterator[ReceivedEvent]:
    yield TokenEvent(request_id, 0, 7, FinishReason.LENGTH)


def _ignore(event: Event) -> None:
    """Receive an event."""
