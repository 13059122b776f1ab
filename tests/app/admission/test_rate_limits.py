"""Requests and tokens a minute, and concurrent choices, of each tenant."""

from __future__ import annotations

import pytest

from app.admission.rate_limits import ANONYMOUS_LIMITS, MAX_IDLE_TENANTS, UNLIMITED, RateLimits
from app.admission.tenants import ANONYMOUS, Tenant, anonymous, key_digest
from app.errors import ApiError

KEY = Tenant(name="anna", digest=key_digest("a"))


class RateLimitsHarness:
    """Rate limits with a manual clock."""

    def __init__(self, **defaults: int) -> None:
        self.now = 100.0
        self.limits = RateLimits(defaults, lambda: self.now)

    def request(self, tenant: Tenant = KEY, prompt: int = 1, generated: int = 0, choices: int = 1) -> None:
        self.limits.check(tenant, choices)
        self.limits.enter(tenant, choices, prompt)
        self.limits.leave(tenant.id, choices, generated)

    def refusal(self, tenant: Tenant = KEY, choices: int = 1) -> tuple[int, str | None, int]:
        with pytest.raises(ApiError) as caught:
            self.limits.check(tenant, choices)
        assert caught.value.code is not None and caught.value.code.removesuffix("_exceeded") in str(caught.value)
        return caught.value.status, caught.value.code, int(caught.value.headers["Retry-After"])


def test_requests_beyond_the_limit_are_refused_until_one_is_refilled():
    """Retry-After is the time until the next request is admitted."""
    harness = RateLimitsHarness(requests_per_minute=30)
    for _ in range(30):
        harness.request()
    assert harness.refusal() == (429, "requests_per_minute_exceeded", 2)
    harness.request(Tenant(name="bert", digest=key_digest("b")))
    harness.now += 1.0
    assert harness.refusal()[2] == 1
    harness.now += 1.0
    harness.request()
    harness.refusal()


def test_tokens_of_prompts_and_answers_count_and_may_overdraw():
    """An answer's tokens are charged when it ends, and the next request waits until they are refilled."""
    harness = RateLimitsHarness(tokens_per_minute=600)
    harness.request(prompt=500, generated=399)
    assert harness.refusal() == (429, "tokens_per_minute_exceeded", 30)
    harness.now += 30.0
    harness.request(prompt=1)


def test_the_duration_of_an_answer_refills_none_of_its_own_tokens():
    """They are charged at the end of the answer, when the bucket is empty."""
    harness = RateLimitsHarness(tokens_per_minute=600)
    harness.limits.enter(KEY, 1, 10)
    harness.now += 60.0
    harness.limits.leave(KEY.id, 1, 1000)
    assert harness.refusal()[2] == 41


def test_concurrent_choices_are_limited_except_for_an_idle_tenant():
    """A request with more choices than the limit could otherwise never be served."""
    harness = RateLimitsHarness(max_concurrency=4)
    harness.limits.check(KEY, 16)
    harness.limits.enter(KEY, 3, 1)
    harness.limits.check(KEY, 1)
    assert harness.refusal(choices=2) == (429, "max_concurrency_exceeded", 1)
    harness.limits.leave(KEY.id, 3, 1)
    harness.limits.check(KEY, 2)


def test_a_tenant_s_own_limit_beats_the_option_and_the_option_beats_the_default():
    """Keys and loopback are unlimited by default, other addresses without a key are not, and 0 is no limit."""
    remote = anonymous("192.0.2.1")
    assert RateLimitsHarness().limits.limits_of(KEY) == RateLimitsHarness().limits.limits_of(ANONYMOUS) == UNLIMITED
    assert RateLimitsHarness().limits.limits_of(remote) == ANONYMOUS_LIMITS
    assert RateLimitsHarness(requests_per_minute=0).limits.limits_of(remote).requests_per_minute == float("inf")
    for tenant in (KEY, ANONYMOUS, remote):
        assert RateLimitsHarness(requests_per_minute=5).limits.limits_of(tenant).requests_per_minute == 5
    own = Tenant(name="own", digest=key_digest("o"), requests_per_minute=7, tokens_per_minute=0)
    limits = RateLimitsHarness(requests_per_minute=5, tokens_per_minute=5).limits.limits_of(own)
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (7, float("inf"))


def test_idle_tenants_are_forgotten_and_active_ones_are_not():
    """The state of clients at ever new addresses is bounded."""
    harness = RateLimitsHarness()
    harness.limits.enter(KEY, 2, 1)
    for number in range(2 * MAX_IDLE_TENANTS):
        harness.request(Tenant(name="t", digest=key_digest(f"k{number}")))
    assert len(harness.limits._usages) <= MAX_IDLE_TENANTS
    harness.limits.leave(KEY.id, 2, 1)
