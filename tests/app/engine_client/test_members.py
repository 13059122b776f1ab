"""A client with two members, whose engines die independently of each other."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from msgspec.structs import replace

from app.engine_client.client import EngineClient, EngineUnavailable
from app.engine_client.member import EngineState
from app.streams.status import EngineMoveEvent, MoveReason
from engine.engine import Engine
from engine.errors import ConfigError
from engine.placement import Share
from engine.types import EndEvent, Phase, ServiceClass, StatusEvent, TokenEvent, WaitReason
from engine.worker import Builder
from tests.app.engine_client.test_client import CONFIG, fake_engine, follow, request, restarts, tokens_of
from tests.fakes import CrashInjector, text_alone
from tests.limits import HANG_SECONDS


def client_of(*builders: Builder, **more) -> EngineClient:
    """Return a client with a member for each builder, which finds its own by the name of its device."""

    def build(config, progress) -> Engine:
        return builders[int(config.device)](config, progress)

    return EngineClient(CONFIG, build, shares=[Share(device=str(index)) for index in range(len(builders))], **more)


def killable(injector: CrashInjector) -> Builder:
    return partial(fake_engine, crash_injector=injector)


@pytest.fixture
def immediate_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the next engine without delay."""
    monkeypatch.setattr("app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS", 0.0)


async def both_ready(client: EngineClient) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not all(member.is_ready for member in client.members):
            await asyncio.sleep(0.001)


async def test_requests_of_a_left_engine_go_on_in_the_other(immediate_restart):
    """The service stays ready, its numbers are sums, and every text is whole."""
    first, second = CrashInjector(), CrashInjector()
    client = client_of(killable(first), killable(second))
    await client.start()
    await both_ready(client)
    assert client.slots == 2 * CONFIG.max_num_seqs and client.state is EngineState.READY
    seen: list[EngineState] = []

    def kill(event) -> None:
        seen.append(client.state)
        first.is_killed = first.is_killed or first.engines_started == 1

    results = await asyncio.gather(*(follow(client, request(f"r{i}", 30 + i), kill) for i in range(8)))
    losses = []
    for i, events in enumerate(results):
        assert tokens_of(events) == text_alone([1, 2], 0, 30 + i)
        losses += [event for event in events if isinstance(event, EngineMoveEvent)]
    assert [(each.left_engine, each.next_engine) for each in losses] == [(0, None), (0, 1)] * CONFIG.max_num_seqs
    assert restarts(client) == client.members[0].restarts == 1 and set(seen) == {EngineState.READY}
    await client.stop()


async def test_a_request_that_kills_engines_ends_after_three_of_them(immediate_restart):
    """Others are answered by both members meanwhile."""
    injectors = CrashInjector(poison_token=666), CrashInjector(poison_token=666)
    client = client_of(*map(killable, injectors))
    await client.start()
    await both_ready(client)
    bad = asyncio.create_task(follow(client, replace(request("bad"), prompt=(1, 666))))
    others = [follow(client, request(f"r{i}", 20 + i)) for i in range(6)]
    for i, events in enumerate(await asyncio.gather(*others)):
        assert tokens_of(events) == text_alone([1, 2], 0, 20 + i)
    assert [event.code for event in await bad if isinstance(event, EndEvent)] == ["engine_died"]
    await both_ready(client)
    assert restarts(client) == 3 and client.in_flight == 0
    await client.stop()


async def settled(client: EngineClient, *states: EngineState) -> None:
    """Wait until the members have these states."""
    async with asyncio.timeout(HANG_SECONDS):
        while [member.phase for member in client.members] != list(states):
            await asyncio.sleep(0.001)


async def test_the_other_engines_start_with_the_pages_of_the_first():
    """Each accepts the same requests, and requests are served before the others are ready."""
    configs, go = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def first(config, progress) -> Engine:
        return fake_engine(config, progress)

    def second(config, progress) -> Engine:
        configs.append(config)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return fake_engine(config, progress)

    client = client_of(first, second)
    await client.start()
    model = await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert tokens_of(await follow(client, request("early"))) == text_alone([1, 2], 0, 5)
    assert client.members[1].phase is EngineState.LOADING
    go.set()
    await both_ready(client)
    assert [config.num_pages for config in configs] == [model.num_pages]
    await client.stop()


async def test_no_engine_starts_if_the_first_cannot_load():
    """The reason is that of the first one."""

    def broken(config, progress) -> Engine:
        raise ConfigError("num_pages: there is no memory")

    started = CrashInjector()
    client = client_of(broken, killable(started))
    await client.start()
    with pytest.raises(EngineUnavailable, match="engine 0: num_pages: there is no memory"):
        await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert started.engines_started == 0 and client.state is EngineState.FAILED
    await client.stop()


@pytest.mark.parametrize("changes", [{"fingerprint": "fp_other"}, {"max_model_len": 16}])
async def test_an_engine_that_cannot_continue_the_texts_of_the_first_is_not_used(changes, caplog):
    """The service goes on with the others, and the log has the reason."""

    def different(config, progress) -> Engine:
        engine = fake_engine(config, progress)
        engine.info = replace(engine.info, **changes)
        return engine

    client = client_of(fake_engine, different)
    await client.start()
    await settled(client, EngineState.READY, EngineState.FAILED)
    assert client.state is EngineState.READY and client.members[1].failure in caplog.text
    assert client.members[1].failure.startswith("engine 1 is not used: its ")
    assert tokens_of(await follow(client, request("r"))) == text_alone([1, 2], 0, 5)
    await client.stop()


async def test_batch_work_waits_here_while_people_are_served():
    """An engine has at most twice its slots of waiting batch requests, and the others have a position and a reason."""
    client, events, done = client_of(fake_engine, fake_engine), [], asyncio.Event()
    await client.start()
    await both_ready(client)
    total = 40

    def sink(event) -> None:
        events.append(event)
        if sum(getattr(event, "finish", None) is not None for event in events) == total:
            done.set()

    for i in range(total):
        client.submit(request(f"b{i:02}", 40, service_class=ServiceClass.BATCH, tenant="t"), sink)
    waiting = [event for event in events if isinstance(event, StatusEvent)]
    assert {(event.phase, event.cause) for event in waiting} == {(Phase.QUEUED, WaitReason.ORDER)}
    bound = 2 * 3 * CONFIG.max_num_seqs
    first = {event.request_id: event.position for event in reversed(waiting)}
    assert first == {f"b{i:02}": 2 * 2 * CONFIG.max_num_seqs + 1 + i - bound for i in range(bound, total)}
    person = await follow(client, request("person", service_class=ServiceClass.INTERACTIVE))
    assert tokens_of(person) == text_alone([1, 2], 0, 5)
    assert not done.is_set()
    await asyncio.wait_for(done.wait(), HANG_SECONDS)
    texts: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            texts.setdefault(event.request_id, []).append(event.token_id)
    assert list(texts.values()) == [text_alone([1, 2], 0, 40)] * total
    await client.stop()


async def test_a_waiting_batch_request_can_be_aborted():
    """No engine gets it."""
    client, ends = client_of(fake_engine, fake_engine), []
    await client.start()
    await both_ready(client)

    def sink(event) -> None:
        if isinstance(event, EndEvent):
            ends.append((event.request_id, event.finish))

    for i in range(40):
        client.submit(request(f"b{i:02}", 4000, service_class=ServiceClass.BATCH), sink)
    client.abort("b39")
    assert ends == []
    await asyncio.sleep(0)
    assert ends == [("b39", "abort")] and client.in_flight == 39
    await client.stop()


async def test_a_suspect_is_tried_at_once_while_all_engines_are_busy(immediate_restart):
    """It kills two engines, which do not come back; the third computes it alone between its other requests."""
    starts, ended = 0, threading.Event()

    def build(config, progress) -> Engine:
        nonlocal starts
        starts += 1
        if starts > 3:
            ended.wait(HANG_SECONDS)
        return fake_engine(config, progress, crash_injector=CrashInjector(poison_token=666))

    client = client_of(build, build, build)
    await client.start()
    await settled(client, *[EngineState.READY] * 3)

    async def keep_busy(tokens: int) -> None:
        serial = 0
        while not ended.is_set():
            serial += 1
            events = await follow(client, request(f"w{tokens}-{serial}", tokens))
            assert tokens_of(events) == text_alone([1, 2], 0, tokens)

    busy = [asyncio.create_task(keep_busy(tokens)) for tokens in (11, 17, 23, 29)]  # which do not end together
    await asyncio.sleep(0)
    bad = await follow(client, replace(request("bad"), prompt=(1, 666)))
    assert [event.code for event in bad if isinstance(event, EndEvent)] == ["engine_died"]
    ended.set()
    await asyncio.wait_for(asyncio.gather(*busy), HANG_SECONDS)
    assert client.in_flight == 0
    await client.stop()


async def test_waiting_requests_move_to_an_engine_that_becomes_free(monkeypatch: pytest.MonkeyPatch):
    """Each has the text that it has without a move, and its timeline has both engines."""
    monkeypatch.setattr("app.engine_client.balancing.MIN_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("app.engine_client.client.BALANCE_SECONDS", 0.0)
    client = client_of(fake_engine, fake_engine)
    await client.start()
    await both_ready(client)
    slots, others = CONFIG.max_num_seqs, set(range(2))
    events: dict[str, list] = {}

    def submit(name: str, tokens: int) -> int:
        events[name] = []
        client.submit(request(name, tokens), events[name].append)
        return client._in_flight.get(name).member

    long = [submit(f"long{number}", 3000) for number in range(2 * slots)]
    waiting = [submit(f"r{number}", 20) for number in range(2 * slots)]
    assert set(long) == set(waiting) == others
    freed = long[0]
    for name, member in zip([f"long{number}" for number in range(2 * slots)], long, strict=True):
        if member == freed:
            client.abort(name)
    async with asyncio.timeout(HANG_SECONDS):
        while not all(
            any(isinstance(each, TokenEvent) and each.finish for each in events[f"r{i}"]) for i in range(2 * slots)
        ):
            await asyncio.sleep(0.001)
    moves = []
    for number, member in enumerate(waiting):
        assert tokens_of(events[f"r{number}"]) == text_alone([1, 2], 0, 20)
        moved = [each for each in events[f"r{number}"] if isinstance(each, EngineMoveEvent)]
        assert all(each.left_engine == member != freed for each in moved)
        moves += moved
    assert {(each.reason, each.next_engine) for each in moves} == {(MoveReason.BUSY, None), (MoveReason.BUSY, freed)}
    await client.stop()
