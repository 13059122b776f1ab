"""Use of limits that clients of one or two engines exchange through them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from app.admission.queues import Admission
from app.admission.rate_limits import RateLimits
from app.admission.request_counts import RequestCounts
from app.admission.shared_uses import SharedUses
from app.admission.tenants import Tenant, key_digest
from app.engine_client.client import EngineClient
from engine.ipc import PostUse, ToEngine
from engine.types import Request, SamplingParams
from tests.app.engine_client.test_tcp_engine import ListeningEngine, client_of, immediate_retry, ready, until

__all__ = ["immediate_retry"]  # a fixture for all tests here
KEY = Tenant(name="anna", digest=key_digest("a"), max_concurrency=2)


@pytest.fixture
def engine() -> Iterator[ListeningEngine]:
    engine = ListeningEngine()
    yield engine
    engine.stop()


class Limited:
    """Limits of an API process, exchanged by its client."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.limits, self.queues = RateLimits({}, time.monotonic), Admission(100, 10_000, time.monotonic)
        self.shared = SharedUses(self.limits, self.queues, time.monotonic)
        client.uses.attach(self.shared)
        self.counts = RequestCounts(self.queues, self.limits, self.shared)

    def begin(self, tenant: Tenant = KEY) -> Request:
        """Count a request that is admitted."""
        request = Request(id="r", prompt=(1, 2), sampling=SamplingParams(max_tokens=1), tenant=tenant.id)
        self.counts.enter(tenant, request)
        return request

    def elsewhere(self, tenant: Tenant = KEY) -> int:
        """Return the choices of a tenant in other processes."""
        usage = self.limits.usage(tenant.id)
        return 0 if usage is None else usage.elsewhere


async def shares(*processes: Limited) -> None:
    """Wait until each process knows that its engines have other connections."""
    for each in processes:
        await ready(each.client)
        await until(lambda each=each: len(each.client.uses._channels) == len(each.client.members))


async def test_clients_learn_of_each_other_s_use_from_an_idle_engine(engine: ListeningEngine):
    """At its begin and at its end, without any step; the use of a client that has left ends."""
    async with client_of(engine.address) as one, client_of(engine.address) as two:
        first, second = Limited(one), Limited(two)
        await shares(first, second)
        requests = [first.begin(), first.begin()]
        await until(lambda: second.elsewhere() == 2 and second.queues.waiting_of(KEY.id).all_requests == 2)
        assert first.elsewhere() == 0
        first.counts.end(requests[0], 3, has_started=False)
        await until(lambda: second.elsewhere() == 1)
        async with client_of(engine.address) as three:
            third = Limited(three)
            await shares(third)
            await until(lambda: third.elsewhere() == 1)
            third.begin()
            await until(lambda: (first.elsewhere(), second.elsewhere()) == (1, 2))
        await until(lambda: (first.elsewhere(), second.elsewhere()) == (0, 1))


async def test_an_only_client_posts_nothing(engine: ListeningEngine, monkeypatch: pytest.MonkeyPatch):
    """Nor does one that is alone again. The next one is told of what runs by then."""
    posts: list[ToEngine] = []
    monkeypatch.setattr("app.engine_client.use_exchange.PostUse", lambda uses: posts.append(uses) or PostUse(uses))
    async with client_of(engine.address) as one:
        first = Limited(one)
        await ready(one)
        first.begin()
        assert not posts and one.uses.slots_taken == 0
        async with client_of(engine.address) as two:
            second = Limited(two)
            await shares(first, second)
            await until(lambda: second.elsewhere() == 1)
        await until(lambda: not one.uses._channels)
        posts.clear()
        first.begin()
        await until(lambda: not first.shared.has_unsent)
        assert not posts


async def test_use_is_exchanged_through_the_engine_that_is_left():
    """And through a new one, with which each connects again."""
    engines = [ListeningEngine(), ListeningEngine()]
    addresses = [engine.address for engine in engines]
    try:
        async with client_of(*addresses) as one, client_of(*addresses) as two:
            first, second = Limited(one), Limited(two)
            await until(lambda: all(member.is_ready for client in (one, two) for member in client.members))
            await shares(first, second)
            first.begin()
            await until(lambda: second.elsewhere() == 1)
            engines[0].stop()
            await until(lambda: len(one.uses._channels) == len(two.uses._channels) == 1)
            assert second.elsewhere() == 1
            first.begin()
            await until(lambda: second.elsewhere() == 2)
            engines[0] = ListeningEngine(addresses[0])
            await shares(first, second)
            engines[1].stop()
            second.begin()
            await until(lambda: first.elsewhere() == 1)
            assert second.elsewhere() == 2
            usage = second.limits.usage(KEY.id)
            assert usage is not None and usage.running == 1
    finally:
        engines[0].stop()


async def test_posts_follow_each_other_at_intervals(engine: ListeningEngine, monkeypatch: pytest.MonkeyPatch):
    """The first is sent at once, and all changes within an interval are one post; an engine that hangs gets none."""
    posts: list[int] = []
    monkeypatch.setattr("app.engine_client.use_exchange.PostUse", lambda uses: posts.append(len(uses)) or PostUse(uses))
    monkeypatch.setattr("app.engine_client.use_exchange.POST_SECONDS", 1000.0)
    async with client_of(engine.address) as one, client_of(engine.address) as two:
        first, second = Limited(one), Limited(two)
        await shares(first, second)
        first.begin()
        assert posts == [1]
        for number in range(200):
            first.begin(Tenant(name="t", digest=key_digest(f"{number}"), max_concurrency=1))
        assert posts == [1]
        one.uses._post()
        assert posts == [1, 64]
        monkeypatch.setattr("app.engine_client.member.EngineMember.is_stalled", True)
        one.uses._post()
        assert posts == [1, 64]
        monkeypatch.undo()
        one.uses._post()
        await until(lambda: second.shared.num_tenants == 201)
