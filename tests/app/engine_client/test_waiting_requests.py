"""Requests that wait for a member, and the turns of tenants."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.engine_client.in_flight_request import InFlightRequest
from app.engine_client.waiting_requests import MAX_REPORTED_POSITIONS, WaitingRequests
from engine.types import Request, SamplingParams, ServiceClass


def waiting_request(serial: int, tenant: str = "a", **more) -> InFlightRequest:
    fields = {"sampling": SamplingParams(max_tokens=9), "service_class": ServiceClass.BATCH, **more}
    return InFlightRequest(Request(id=f"{tenant}{serial}", prompt=(1,), tenant=tenant, **fields), print, serial)


def next_of(waiting: WaitingRequests) -> InFlightRequest | None:
    return waiting.first_urgent() or next(waiting.in_turn(), None)


def place_all(waiting: WaitingRequests, limit: int = 1000) -> list[str]:
    """Give requests to a member, of which no choice ends, and return their names."""
    placed = []
    while len(placed) < limit and (first := next_of(waiting)) is not None:
        waiting.remove(first)
        waiting.hold(first)
        placed.append(first.request.id)
    return placed


requests = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 1), st.sampled_from(ServiceClass)), max_size=20
)


@given(requests)
def test_requests_leave_in_the_order_that_was_predicted(given_requests):
    """People go first, and each request leaves once."""
    waiting = WaitingRequests(binds_late=True)
    for serial, (tenant, n, priority, service_class) in enumerate(given_requests):
        waiting.add(waiting_request(serial, tenant, n=n, priority=priority, service_class=service_class))
    people = [
        f"{tenant}{serial}" for serial, (tenant, *_, c) in enumerate(given_requests) if c is not ServiceClass.BATCH
    ]
    predicted = [request.request.id for request in waiting.in_turn()]
    assert waiting.late == len(predicted) == len(given_requests) - len(people)
    assert place_all(waiting) == people + predicted
    assert waiting.late == 0 and not list(waiting.in_turn())


def test_tenants_take_turns_by_weight():
    """A tenant of weight 3 gets three turns for each of another one, whoever came first."""
    waiting = WaitingRequests(binds_late=True)
    for serial in range(40):
        waiting.add(waiting_request(serial, "flood"))
    for serial in range(40):
        waiting.add(waiting_request(serial, "heavy", weight=3.0))
    turns = Counter(name.rstrip("0123456789") for name in place_all(waiting, 40))
    assert turns == {"flood": 10, "heavy": 30}


def test_a_tenant_whose_choices_end_faster_gets_more_turns():
    """Its share is decided by the engines' policy, which needs waiting requests of each tenant."""
    waiting, placed = WaitingRequests(binds_late=True), []
    for serial in range(20):
        waiting.add(waiting_request(serial, "quick"))
        waiting.add(waiting_request(serial, "slow"))
    for _ in range(10):
        first = next_of(waiting)
        waiting.remove(first)
        waiting.hold(first)
        placed.append(first.request.tenant)
        if first.request.tenant == "quick":
            waiting.release(first, 1)
    assert Counter(placed) == {"quick": 9, "slow": 1}


def test_a_request_that_comes_back_takes_its_former_place():
    """Its engine was lost."""
    waiting = WaitingRequests(binds_late=True)
    first, second = waiting_request(0), waiting_request(1)
    waiting.add(first)
    waiting.add(second)
    assert place_all(waiting, 1) == ["a0"]
    waiting.release(first, 1)
    waiting.add(first)
    assert place_all(waiting) == ["a0", "a1"]


def test_the_first_few_requests_get_their_positions_and_each_new_one_gets_one():
    """A request further back has the length of the queue."""
    waiting, total = WaitingRequests(binds_late=True), MAX_REPORTED_POSITIONS + 5
    requests = [waiting_request(serial) for serial in range(total)]
    for request in requests:
        waiting.add(request)
    waiting.report_positions(ahead=10)
    assert [request.position for request in requests] == [
        *range(11, 11 + MAX_REPORTED_POSITIONS),
        *[10 + total] * 5,
    ]
    place_all(waiting, 2)
    waiting.report_positions(ahead=10)
    assert [request.position for request in requests[2:]] == [
        *range(11, 11 + MAX_REPORTED_POSITIONS),
        *[10 + total] * 3,
    ]


def test_a_single_member_gets_all_requests_at_once():
    """There is no other member that could be free earlier."""
    waiting = WaitingRequests(binds_late=False)
    waiting.add(waiting_request(0))
    assert waiting.late == 0 and waiting.first_urgent().request.id == "a0"
    assert waiting.count(ServiceClass.BATCH) == 1
