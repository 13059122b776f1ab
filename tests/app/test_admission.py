"""Bounded queues: who is refused, with what, and when to come again."""

from __future__ import annotations

import pytest

from app.admission import MAX_IDLE_TENANTS, MOST_SECONDS, UNKNOWN_SECONDS, Admission
from app.errors import ApiError
from app.tenants import Tenant, key_digest
from engine.types import ServiceClass

S, B = ServiceClass.STANDARD, ServiceClass.BATCH


class Door:
    """An admission with a clock that is turned by hand."""

    def __init__(self, requests: int = 10, tokens: int = 1000, share: float = 1.0) -> None:
        self.now = 100.0
        self.admission = Admission(requests, tokens, lambda: self.now, share)

    def enter(self, tenant: Tenant, times: int = 1, tokens: int = 10, service_class: ServiceClass = S) -> None:
        for _ in range(times):
            self.admission.enter(tenant.id, service_class, tokens)

    def refusal(self, tenant: Tenant, tokens: int = 10, service_class: ServiceClass = S) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.admission.check(tenant, service_class, tokens)
        return caught.value


ANNA = Tenant(name="anna", digest=key_digest("a"), max_queue=3, max_queue_tokens=100)
BERT = Tenant(name="bert", digest=key_digest("b"))


def test_a_tenant_s_own_bound_is_429_and_nobody_else_s_business():
    """Others of its class are let in."""
    door = Door()
    door.enter(ANNA, 3)
    assert (door.refusal(ANNA).status, door.refusal(ANNA).code) == (429, "queue_quota_exceeded")
    door.admission.check(BERT, S, 10)


def test_a_full_class_is_503_and_the_other_classes_are_open():
    """Bulk work that fills its queue keeps no person out."""
    door = Door()
    door.enter(BERT, 10, service_class=B)
    assert (door.refusal(BERT, service_class=B).status, door.refusal(BERT, service_class=B).code) == (
        503,
        "server_full",
    )
    door.admission.check(BERT, S, 10)


def test_prompt_tokens_are_bounded_too():
    """By class and by tenant."""
    door = Door(tokens=500)
    door.enter(ANNA, 1, tokens=95)
    assert "prompt tokens" in str(door.refusal(ANNA))
    door.enter(BERT, 1, tokens=400)
    assert door.refusal(BERT).status == 503


def test_a_prompt_longer_than_the_bound_is_let_in_when_nobody_waits():
    """Else it could never be."""
    door = Door(tokens=500)
    door.admission.check(BERT, S, 5000)


def test_retry_after_is_what_the_measured_rate_makes_of_the_queue():
    """Two a second drain; of forty that wait, a quarter must go: five seconds."""
    door = Door(requests=40)
    for _ in range(100):
        door.enter(BERT, 2)
        door.now += 1.0
        door.admission.leave(BERT.id, S, 10)
        door.admission.leave(BERT.id, S, 10)
    door.enter(BERT, 40)
    assert int(door.refusal(BERT).headers["Retry-After"]) == pytest.approx(5, abs=1)


def test_retry_after_is_said_even_when_nothing_has_drained_yet():
    """A guess at first, and never more than ten minutes."""
    door = Door()
    door.enter(BERT, 10)
    assert door.refusal(BERT).headers["Retry-After"] == str(UNKNOWN_SECONDS)
    door.admission.leave(BERT.id, S, 10)
    door.enter(BERT)
    door.now += 400.0
    assert door.refusal(BERT).headers["Retry-After"] == str(MOST_SECONDS)


def test_who_waits_for_the_next_step_alone_keeps_nobody_out():
    """As many as there are free slots, whoever they are for; one more is one too many."""
    door = Door()
    door.enter(ANNA, 3 + 4)
    door.admission.check(ANNA, S, 10, slots=5)
    with pytest.raises(ApiError) as caught:
        door.admission.check(ANNA, S, 10, slots=4)
    assert caught.value.status == 429
    door.enter(BERT, 7)
    door.admission.check(BERT, S, 10, slots=5)
    with pytest.raises(ApiError) as caught:
        door.admission.check(BERT, S, 10, slots=4)
    assert caught.value.status == 503


def test_who_left_makes_room():
    """For the next one."""
    door = Door()
    door.enter(ANNA, 3)
    door.admission.leave(ANNA.id, S, 10)
    door.admission.check(ANNA, S, 10)


def test_one_tenant_takes_its_share_of_a_class_and_others_are_admitted():
    """The share holds for each class, in requests and in prompt tokens, and counts free slots on top."""
    door = Door(requests=10, tokens=1000, share=0.5)
    door.enter(BERT, 5)
    refused = door.refusal(BERT)
    assert (refused.status, refused.code) == (429, "queue_share_exceeded")
    assert int(refused.headers["Retry-After"]) >= 1
    door.admission.check(BERT, B, 10)
    door.admission.check(BERT, S, 10, slots=1)
    door.admission.check(ANNA, S, 10)
    door.enter(ANNA, 1, tokens=90)
    door.enter(BERT, 1, tokens=450, service_class=B)
    assert "prompt tokens" in str(door.refusal(BERT, tokens=60, service_class=B))


def test_tenants_without_waiting_requests_are_forgotten_and_others_are_not():
    """A client may come from any number of addresses, so their state is bounded."""
    door = Door(requests=10**6, tokens=10**9)
    waiting = [Tenant(name=f"w{number}", digest=key_digest(f"w{number}")) for number in range(5)]
    for tenant in waiting:
        door.enter(tenant, 3)
    for number in range(2 * MAX_IDLE_TENANTS):
        door.admission.enter(f"idle-{number}", S, 10)
        door.admission.leave(f"idle-{number}", S, 10)
    assert len(door.admission._tenants) <= MAX_IDLE_TENANTS
    for tenant in waiting:
        for _ in range(3):
            door.admission.leave(tenant.id, S, 10)
    assert door.admission.waiting(S).requests == 0
