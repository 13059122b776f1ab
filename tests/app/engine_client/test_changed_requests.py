"""Requests in flight that their clients pause and move to other classes."""

from __future__ import annotations

import random

from app.engine_client.balancing import MIN_WAIT_SECONDS
from app.engine_client.in_flight import InFlight
from app.engine_client.waiting_requests import MIN_CLEANUP_ENTRIES
from engine.types import Phase, ServiceClass, StatusEvent, WaitReason
from tests.app.engine_client.test_in_flight_members import MAX_BATCH, SLOTS, ready, request

STANDARD, BATCH = ServiceClass.STANDARD, ServiceClass.BATCH


def reported(events: list[StatusEvent]) -> list[tuple[Phase, WaitReason | None]]:
    return [(event.phase, event.cause) for event in events]


def test_a_request_without_an_engine_is_paused_and_resumed():
    """The next engine gets it as it is, and it is no wait for a slot meanwhile."""
    in_flight, events = InFlight(has_several=False), []
    in_flight.add(request("a"), events.append).report_no_engine()
    assert in_flight.change("a", is_paused=True, service_class=STANDARD) is None
    assert in_flight.waiting.count(STANDARD) == 0 and not list(in_flight.slot_waits())
    [sent] = in_flight.requests_to_send(ready(0))[0]
    assert sent.is_paused and sent.waiting_since is None
    in_flight.lose_engine()
    assert in_flight.change("a", is_paused=False, service_class=BATCH) is None
    [sent] = in_flight.requests_to_send(ready(0))[0]
    assert (sent.is_paused, sent.service_class) == (False, BATCH)
    queued, paused = (Phase.QUEUED, WaitReason.RESTART), (Phase.PAUSED, WaitReason.CLIENT)
    assert reported(events) == [queued, paused, paused, queued]


def test_a_paused_request_moves_to_another_engine_with_its_own():
    in_flight, events = InFlight(random.Random(0), has_several=True), []
    in_flight.add(request("a"), events.append)
    [lost] = in_flight.requests_to_send(ready(0, 1))
    in_flight.change("a", is_paused=True, service_class=STANDARD)
    in_flight.handle(StatusEvent("a", 0, Phase.PAUSED, cause=WaitReason.CLIENT))
    in_flight.lose_engine(lost, has_died=False)
    [sent] = in_flight.requests_to_send(ready(1 - lost))[1 - lost]
    assert sent.is_paused and all(event.phase is Phase.PAUSED for event in events)


def test_a_paused_request_is_not_asked_back_for_a_free_slot_elsewhere():
    now = 0.0
    in_flight = InFlight(random.Random(0), lambda: now, has_several=True)
    names = [f"r{number}" for number in range(SLOTS + 2)]
    for name in names:
        in_flight.add(request(name), lambda event: None)
        in_flight.requests_to_send(ready(0))
        in_flight.handle(StatusEvent(name, 0, Phase.QUEUED))
    now = 2 * MIN_WAIT_SECONDS
    in_flight.change(names[0], is_paused=True, service_class=STANDARD)
    assert in_flight.requests_to_recall(ready(0, 1)) == [(0, name) for name in names[1 : 1 + SLOTS]]


def test_a_batch_request_goes_to_an_engine_when_it_becomes_urgent_or_is_paused():
    """It has waited until a member needs it; a paused one takes the place of no other."""
    in_flight = InFlight(random.Random(0), has_several=True)
    for number in range(MAX_BATCH + 3):
        in_flight.add(request(f"b{number}", service_class=BATCH), lambda event: None)
    in_flight.requests_to_send(ready(0))
    first, second, third = (state.request.id for state in in_flight.waiting.in_turn())
    in_flight.change(second, is_paused=False, service_class=STANDARD)
    in_flight.change(third, is_paused=True, service_class=BATCH)
    assert {each.id for each in in_flight.requests_to_send(ready(0))[0]} == {second, third}
    assert [state.request.id for state in in_flight.waiting.in_turn()] == [first]


def test_changes_without_an_engine_leave_no_memory_behind():
    in_flight = InFlight(has_several=False)
    in_flight.add(request("a"), lambda event: None)
    for _ in range(10 * MIN_CLEANUP_ENTRIES):
        in_flight.change("a", is_paused=True, service_class=STANDARD)
        in_flight.change("a", is_paused=False, service_class=STANDARD)
    assert len(in_flight.waiting._order) <= MIN_CLEANUP_ENTRIES + 3
    assert [each.id for each in in_flight.requests_to_send(ready(0))[0]] == ["a"]
