"""Bounded queues: refusals, their status codes and Retry-After."""

from __future__ import annotations

import pytest

from app.admission.queues import DEFAULT_RETRY_SECONDS, MAX_IDLE_TENANTS, MAX_RETRY_SECONDS, Admission
from app.admission.tenants import Tenant, key_digest
from app.errors import ApiError
from engine.types import ServiceClass

S, B = ServiceClass.STANDARD, ServiceClass.BATCH


class AdmissionHarness:
    """An `Admission` with a manual clock."""

    def __init__(self, requests: int = 10, tokens: int = 1000, share: float = 1.0) -> None:
        self.now = 100.0
        self.admission = Admission(requests, tokens, lambda: self.now, share)

    def enter(self, tenant: Tenant, times: int = 1, tokens: int = 10, service_class: ServiceClass = S) -> None:
        for _ in range(times):
            self.admission.add_waiting(tenant.id, service_class, tokens)

    def refusal(self, tenant: Tenant, tokens: int = 10, service_class: ServiceClass = S) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.admission.check(tenant, service_class, tokens)
        return caught.value


ANNA = Tenant(name="anna", digest=key_digest("a"), max_queue=3, max_queue_tokens=100)
BERT = Tenant(name="bert", digest=key_digest("b"))


def test_a_tenant_over_its_own_bound_gets_429():
    """Other tenants of the same class are admitted."""
    harness = AdmissionHarness()
    harness.enter(ANNA, 3)
    assert (harness.refusal(ANNA).status, harness.refusal(ANNA).code) == (429, "queue_quota_exceeded")
    harness.admission.check(BERT, S, 10)


def test_a_full_class_is_503_and_the_other_classes_are_open():
    """Bulk work that fills its queue does not block interactive requests."""
    harness = AdmissionHarness()
    harness.enter(BERT, 10, service_class=B)
    assert (harness.refusal(BERT, service_class=B).status, harness.refusal(BERT, service_class=B).code) == (
        503,
        "server_full",
    )
    harness.admission.check(BERT, S, 10)


def test_prompt_tokens_are_bounded_too():
    """The bound holds by class and by tenant."""
    harness = AdmissionHarness(tokens=500)
    harness.enter(ANNA, 1, tokens=95)
    assert "prompt tokens" in str(harness.refusal(ANNA))
    harness.enter(BERT, 1, tokens=400)
    assert harness.refusal(BERT).status == 503


def test_a_prompt_longer_than_the_bound_is_admitted_to_an_empty_queue():
    """Otherwise it could never be admitted."""
    harness = AdmissionHarness(tokens=500)
    harness.admission.check(BERT, S, 5000)


def test_retry_after_follows_the_measured_drain_rate():
    """A quarter of forty waiting requests drains in five seconds at two requests a second."""
    harness = AdmissionHarness(requests=40)
    for _ in range(100):
        harness.enter(BERT, 2)
        harness.now += 1.0
        harness.admission.remove_waiting(BERT.id, S, 10)
        harness.admission.remove_waiting(BERT.id, S, 10)
    harness.enter(BERT, 40)
    assert int(harness.refusal(BERT).headers["Retry-After"]) == pytest.approx(5, abs=1)


def test_retry_after_has_a_default_and_a_maximum():
    """The first value is a guess, and the maximum is ten minutes."""
    harness = AdmissionHarness()
    harness.enter(BERT, 10)
    assert harness.refusal(BERT).headers["Retry-After"] == str(DEFAULT_RETRY_SECONDS)
    harness.admission.remove_waiting(BERT.id, S, 10)
    harness.enter(BERT)
    harness.now += 400.0
    assert harness.refusal(BERT).headers["Retry-After"] == str(MAX_RETRY_SECONDS)


def test_requests_that_will_fill_free_slots_do_not_count_as_queued():
    """Each class may hold as many extra requests as there are free batch slots, and not one more."""
    harness = AdmissionHarness()
    harness.enter(ANNA, 3 + 4)
    harness.admission.check(ANNA, S, 10, slots=5)
    with pytest.raises(ApiError) as caught:
        harness.admission.check(ANNA, S, 10, slots=4)
    assert caught.value.status == 429
    harness.enter(BERT, 7)
    harness.admission.check(BERT, S, 10, slots=5)
    with pytest.raises(ApiError) as caught:
        harness.admission.check(BERT, S, 10, slots=4)
    assert caught.value.status == 503


def test_a_request_that_leaves_makes_room():
    """The next request is admitted."""
    harness = AdmissionHarness()
    harness.enter(ANNA, 3)
    harness.admission.remove_waiting(ANNA.id, S, 10)
    harness.admission.check(ANNA, S, 10)


def test_one_tenant_takes_its_share_of_a_class_and_others_are_admitted():
    """The share holds for each class, in requests and in prompt tokens, and free slots are added to it."""
    harness = AdmissionHarness(requests=10, tokens=1000, share=0.5)
    harness.enter(BERT, 5)
    refused = harness.refusal(BERT)
    assert (refused.status, refused.code) == (429, "queue_share_exceeded")
    assert int(refused.headers["Retry-After"]) >= 1
    harness.admission.check(BERT, B, 10)
    harness.admission.check(BERT, S, 10, slots=1)
    harness.admission.check(ANNA, S, 10)
    harness.enter(ANNA, 1, tokens=90)
    harness.enter(BERT, 1, tokens=450, service_class=B)
    assert "prompt tokens" in str(harness.refusal(BERT, tokens=60, service_class=B))


def test_tenants_without_waiting_requests_are_forgotten_and_others_are_not():
    """A client may use any number of addresses, so their state is bounded."""
    harness = AdmissionHarness(requests=10**6, tokens=10**9)
    waiting = [Tenant(name=f"w{number}", digest=key_digest(f"w{number}")) for number in range(5)]
    for tenant in waiting:
        harness.enter(tenant, 3)
    for number in range(2 * MAX_IDLE_TENANTS):
        harness.admission.add_waiting(f"idle-{number}", S, 10)
        harness.admission.remove_waiting(f"idle-{number}", S, 10)
    assert len(harness.admission._tenants) <= MAX_IDLE_TENANTS
    for tenant in waiting:
        for _ in range(3):
            harness.admission.remove_waiting(tenant.id, S, 10)
    assert harness.admission.waiting(S).requests == 0
