"""A client with two members, whose engines die independently of each other."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from app.engine_client.client import EngineClient
from app.engine_client.engine_process import EngineProcess
from app.engine_client.in_flight import InFlight
from app.engine_client.member import EngineMember, EngineState
from engine.types import EndEvent, StatusEvent, WaitReason
from tests.app.engine_client.test_client import CONFIG, fake_engine, follow, request, tokens_of
from tests.fakes import CrashInjector, text_alone
from tests.limits import HANG_SECONDS


def client_of(*injectors: CrashInjector) -> EngineClient:
    """Return a client with a member for each injector, which no option offers yet."""
    client = EngineClient(CONFIG, fake_engine)
    client._in_flight = InFlight(len(injectors))
    client.members = tuple(
        EngineMember(
            index,
            CONFIG,
            partial(EngineProcess, build=partial(fake_engine, crash_injector=injector)),
            client._in_flight,
            client,
            name=f"engine {index}",
        )
        for index, injector in enumerate(injectors)
    )
    return client


@pytest.fixture
def immediate_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the next engine without delay."""
    monkeypatch.setattr("app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS", 0.0)


async def both_ready(client: EngineClient) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not all(member.is_ready for member in client.members):
            await asyncio.sleep(0.001)


async def test_requests_of_a_lost_engine_go_on_in_the_other(immediate_restart):
    """The service stays ready, its numbers are sums, and every text is whole."""
    first, second = CrashInjector(), CrashInjector()
    client = client_of(first, second)
    await client.start()
    await both_ready(client)
    assert client.slots == 2 * CONFIG.max_num_seqs and client.state is EngineState.READY
    seen: list[EngineState] = []

    def kill(event) -> None:
        seen.append(client.state)
        first.is_killed = first.is_killed or first.engines_started == 1

    results = await asyncio.gather(*(follow(client, request(f"r{i}", 30 + i), kill) for i in range(8)))
    for i, events in enumerate(results):
        assert tokens_of(events) == text_alone([1, 2], 0, 30 + i)
        assert any(isinstance(event, StatusEvent) and event.cause is WaitReason.RESTART for event in events)
    assert client.restarts == client.members[0].restarts == 1 and set(seen) == {EngineState.READY}
    await client.stop()


async def test_a_request_that_kills_engines_ends_after_three_of_them(immediate_restart):
    """Others are answered meanwhile by the member that does not try the suspect."""
    injectors = CrashInjector(poison_token=666), CrashInjector(poison_token=666)
    client = client_of(*injectors)
    await client.start()
    await both_ready(client)
    bad = asyncio.create_task(follow(client, replace(request("bad"), prompt=(1, 666))))
    others = [follow(client, request(f"r{i}", 20 + i)) for i in range(6)]
    for i, events in enumerate(await asyncio.gather(*others)):
        assert tokens_of(events) == text_alone([1, 2], 0, 20 + i)
    assert [event.code for event in await bad if isinstance(event, EndEvent)] == ["engine_died"]
    await both_ready(client)
    assert client.restarts == 3 and client.in_flight == 0
    await client.stop()
