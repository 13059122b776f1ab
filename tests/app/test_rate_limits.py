"""Requests and tokens a minute, and choices at once, of each tenant."""

from __future__ import annotations

import pytest

from app.errors import ApiError
from app.rate_limits import ANONYMOUS_LIMITS, MAX_IDLE_TENANTS, UNLIMITED, RateLimits
from app.tenants import ANYBODY, Tenant, anonymous, key_digest

KEY = Tenant(name="anna", digest=key_digest("a"))


class Clocked:
    """Limits with a clock that is set by hand."""

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


def test_requests_beyond_the_limit_are_refused_until_one_has_flowed_back():
    """Retry-After is the time until the next request is admitted."""
    clocked = Clocked(requests_per_minute=30)
    for _ in range(30):
        clocked.request()
    assert clocked.refusal() == (429, "requests_per_minute_exceeded", 2)
    clocked.request(Tenant(name="bert", digest=key_digest("b")))
    clocked.now += 1.0
    assert clocked.refusal()[2] == 1
    clocked.now += 1.0
    clocked.request()
    clocked.refusal()


def test_tokens_of_prompts_and_answers_count_and_may_overdraw():
    """An answer's tokens are charged when it ends; the next request waits until they have flowed back."""
    clocked = Clocked(tokens_per_minute=600)
    clocked.request(prompt=500, generated=399)
    assert clocked.refusal() == (429, "tokens_per_minute_exceeded", 30)
    clocked.now += 30.0
    clocked.request(prompt=1)


def test_the_time_that_an_answer_took_gives_back_none_of_its_own_tokens():
    """They are charged at its end, after the bucket has run empty."""
    clocked = Clocked(tokens_per_minute=600)
    clocked.limits.enter(KEY, 1, 10)
    clocked.now += 60.0
    clocked.limits.leave(KEY.id, 1, 1000)
    assert clocked.refusal()[2] == 41


def test_choices_under_way_are_limited_and_an_idle_tenant_may_ask_for_more():
    """A request with more choices than the limit could otherwise never be served."""
    clocked = Clocked(max_concurrency=4)
    clocked.limits.check(KEY, 16)
    clocked.limits.enter(KEY, 3, 1)
    clocked.limits.check(KEY, 1)
    assert clocked.refusal(choices=2) == (429, "max_concurrency_exceeded", 1)
    clocked.limits.leave(KEY.id, 3, 1)
    clocked.limits.check(KEY, 2)


def test_a_tenant_s_own_limit_beats_the_option_and_the_option_beats_the_default():
    """Keys and loopback are unlimited by default, other addresses without a key are not; 0 is no limit."""
    remote = anonymous("192.0.2.1")
    assert Clocked().limits.limits_of(KEY) == Clocked().limits.limits_of(ANYBODY) == UNLIMITED
    assert Clocked().limits.limits_of(remote) == ANONYMOUS_LIMITS
    assert Clocked(requests_per_minute=0).limits.limits_of(remote).requests_per_minute == float("inf")
    for tenant in (KEY, ANYBODY, remote):
        assert Clocked(requests_per_minute=5).limits.limits_of(tenant).requests_per_minute == 5
    own = Tenant(name="own", digest=key_digest("o"), requests_per_minute=7, tokens_per_minute=0)
    limits = Clocked(requests_per_minute=5, tokens_per_minute=5).limits.limits_of(own)
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (7, float("inf"))


def test_idle_tenants_are_forgotten_and_those_with_a_request_under_way_are_not():
    """The state of clients at ever new addresses is bounded."""
    clocked = Clocked()
    clocked.limits.enter(KEY, 2, 1)
    for number in range(2 * MAX_IDLE_TENANTS):
        clocked.request(Tenant(name="t", digest=key_digest(f"k{number}")))
    assert len(clocked.limits._usages) <= MAX_IDLE_TENANTS
    clocked.limits.leave(KEY.id, 2, 1)
