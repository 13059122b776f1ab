"""Counts of requests that their clients pause and move to other classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.request_counts import PauseLimits, RequestCounts
from app.admission.shared_uses import SharedUses
from app.admission.tenants import Tenant
from app.errors import ApiError
from engine.types import Request, SamplingParams, ServiceClass

MANY = PauseLimits(9, 9, 99)
TENANT = Tenant(name="anna", digest="a" * 64)


def request(name: str = "r", n: int = 1, **more: object) -> Request:
    sampling = SamplingParams(max_tokens=9)
    return Request(**{"id": name, "prompt": (1, 2), "sampling": sampling, "n": n, "tenant": TENANT.id, **more})


class Counts(RequestCounts):
    """Counts with queues of two requests, on a clock that stands still."""

    def __init__(self) -> None:
        self.queues = Admission(2, 100, lambda: 0.0)
        self.limits = RateLimits({}, lambda: 0.0)
        super().__init__(self.queues, self.limits, SharedUses(self.limits, self.queues, lambda: 0.0))

    def waiting(self) -> list[int]:
        return [self.queues.waiting(each).requests for each in ServiceClass]

    def may_change(self, before: Request, after: Request, limits: PauseLimits = MANY) -> str:
        """Return the code of the refusal; empty if there is none."""
        try:
            self.check_change(TENANT, before, after, limits, 0, 0, has_started=False)
        except ApiError as error:
            return error.code or ""
        return ""


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(ServiceClass)), max_size=8),
    st.integers(0, 8),
    st.integers(1, 3),
)
def test_each_request_is_counted_once_where_it_is(changes, started_after: int, n: int):
    """Whether it receives its first slot before a pause, between pauses, or when its pause has just begun."""
    counts, current, has_started = Counts(), request(n=n), False
    counts.enter(TENANT, current)
    for number, (is_paused, service_class) in enumerate(changes):
        if number == started_after:
            counts.start(current)
            has_started = True
        after = replace(current, is_paused=is_paused, service_class=service_class)
        counts.change(current, after, has_started=has_started)
        current = after
        expected = [0, 0, 0]
        expected[service_class] = not (is_paused or has_started)
        assert counts.waiting() == expected
        assert counts.running == (n if has_started and not is_paused else 0)
        assert counts.limits.usage(TENANT.id).running == n
    counts.end(current, 3, has_started=has_started)
    assert counts.waiting() == [0, 0, 0] and counts.running == 0 and not counts._paused_of
    assert counts.limits.usage(TENANT.id).running == 0


def test_a_pause_is_no_way_around_the_bound_of_a_queue():
    """A request that has left its queue returns only if that has room, and moves only to one that has."""
    counts, mine = Counts(), request("mine")
    counts.enter(TENANT, mine)
    paused = replace(mine, is_paused=True)
    counts.change(mine, paused, has_started=False)
    for name in ("x", "y"):
        counts.enter(TENANT, request(name))
    assert counts.may_change(paused, mine) == "server_full"
    assert counts.may_change(paused, replace(mine, service_class=ServiceClass.BATCH)) == ""
    batch = request("batch", service_class=ServiceClass.BATCH)
    assert counts.may_change(batch, replace(batch, service_class=ServiceClass.STANDARD)) == "server_full"


@pytest.mark.parametrize("max_paused", [0, 1, 3])
def test_a_tenant_has_at_most_so_many_paused_requests(max_paused: int):
    counts, limits = Counts(), PauseLimits(max_paused, 9, 99)
    for number in range(max_paused):
        each = request(f"r{number}")
        counts.enter(TENANT, each)
        paused = replace(each, is_paused=True)
        assert counts.may_change(each, paused, limits) == ""
        counts.change(each, paused, has_started=False)
    one_more = request("one more")
    assert counts.may_change(one_more, replace(one_more, is_paused=True), limits) == "too_many_paused"


@pytest.mark.parametrize("limits", [PauseLimits(9, 2, 99), PauseLimits(9, 9, 5)])
def test_paused_requests_of_all_tenants_take_as_much_memory_as_a_queue(limits: PauseLimits):
    """Many addresses could pause more than the server holds, as paused requests are in no queue."""
    counts = Counts()
    for number in range(3):
        tenant = Tenant(name="t", digest=f"t{number}")
        each = request(f"r{number}", tenant=tenant.id)
        counts.enter(tenant, each)
        paused = replace(each, is_paused=True)
        assert counts.may_change(each, paused, limits) == ("too_many_paused" if number == 2 else "")
        if number < 2:
            counts.change(each, paused, has_started=False)
    first = request("r0", tenant="t0", is_paused=True)
    counts.end(first, 0, has_started=False)
    assert counts.may_change(each, paused, limits) == ""
