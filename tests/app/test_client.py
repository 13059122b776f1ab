"""The engine's process from the API's side: frames, failures, and what becomes of requests when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.client import EngineClient, EngineUnavailable, Phase
from app.life import Life, _Channel
from app.lives import FRUITLESS
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError, InvalidParameter
from engine.frames import Abort, ChannelClosed, FrameReader, Ready, Stepped, Submit, Watch, encode, to_engine
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import Cause, EndEvent, Event, FinishReason, Request, SamplingParams, StatusEvent, TokenEvent
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import CrashInjector, MemoryRunner, text_alone

PAGES = 4096  # room for an answer that no test waits for


def fake_engine(
    config: EngineConfig,
    progress,
    costs: Costs = Costs(1e9, 1.0),  # noqa: B008
    runs_ahead: bool = False,
    crash_injector: CrashInjector | None = None,
) -> Engine:
    """An engine on a made-up model."""
    if crash_injector is not None:
        crash_injector.begin()
    policy = make_policy(config, costs)
    scheduler = Scheduler(config, policy, num_pages=PAGES, host_pages=8, max_len=4 * PAGES)
    progress("weights", 1, 1)
    info = model_info(PAGES, config.max_num_seqs, 4, max_model_len=4 * PAGES)
    runner = MemoryRunner(PAGES, 8, 4, runs_ahead=runs_ahead, ran_dry=False, crash_injector=crash_injector)
    return Engine(config, info, scheduler, runner)


CONFIG = EngineConfig(model="fake", max_num_seqs=4, page_size=4)


@pytest.fixture
async def client():
    made = EngineClient(CONFIG, fake_engine)
    await made.start()
    await asyncio.wait_for(made.ready(), 10)
    yield made
    await made.stop()


def request(name: str, tokens: int = 5, **more) -> Request:
    return Request(id=name, prompt=(1, 2), sampling=SamplingParams(max_tokens=tokens), **more)


async def follow(client: EngineClient, wanted: Request, hear: Callable[[Event], None] = lambda event: None) -> list:
    """All events of a request, until every choice has ended."""
    events, done = [], asyncio.Event()
    left = wanted.n

    def sink(event) -> None:
        nonlocal left
        events.append(event)
        hear(event)
        left -= getattr(event, "finish", None) is not None
        if not left:
            done.set()

    client.submit(wanted, sink)
    await asyncio.wait_for(done.wait(), 10)
    return events


async def test_an_engine_that_waits_for_its_device_says_the_same():
    """Four rows are thought to take 40 ms, and half of that is waited for before the next step is decided."""
    costs = Costs(1e9, 1e3, 0.01, 0.01)
    client = EngineClient(CONFIG, partial(fake_engine, costs=costs, runs_ahead=True))
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    gone = request("gone", PAGES)
    client.submit(gone, lambda event: None)
    results = await asyncio.gather(*(follow(client, request(f"r{i}", 3 + i % 5)) for i in range(40)))
    for i, events in enumerate(results):
        tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
        assert tokens == text_alone([1, 2], 0, 3 + i % 5)
    client.abort(gone.id)
    await asyncio.wait_for(follow(client, request("last")), 10)
    await client.stop()


async def test_events_of_many_requests_reach_their_own_sinks(client):
    """Forty at once, on four slots."""
    results = await asyncio.gather(*(follow(client, request(f"r{i}", 3 + i % 5)) for i in range(40)))
    for i, events in enumerate(results):
        assert {event.request_id for event in events} == {f"r{i}"}
        tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
        assert tokens == text_alone([1, 2], 0, 3 + i % 5)
    assert client.in_flight == 0


async def test_the_event_loop_has_its_turn_between_a_few_events_of_a_step(monkeypatch: pytest.MonkeyPatch):
    """So others are heard in the middle of a large step; each stream's order stays."""
    monkeypatch.setattr("app.life.EVENTS_A_TURN", 8)
    client = EngineClient(msgspec.structs.replace(CONFIG, max_num_seqs=64), fake_engine)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    loop, in_a_row, longest, widest = asyncio.get_running_loop(), 0, 0, 0
    told: dict[str, list[int]] = {f"r{i}": [] for i in range(64)}

    def turn() -> None:
        nonlocal in_a_row
        in_a_row = 0

    def sink(event) -> None:
        nonlocal in_a_row, longest, widest
        if not in_a_row:
            loop.call_soon(turn)
        in_a_row += 1
        longest = max(longest, in_a_row)
        if isinstance(event, TokenEvent):
            told[event.request_id].append(event.token_id)
            widest = max(widest, sum(len(tokens) == len(told[event.request_id]) for tokens in told.values()))

    for name in told:
        client.submit(request(name, 40), sink)
    while client.in_flight:
        await asyncio.sleep(0.01)
    await client.stop()
    assert widest > 16  # so many were in one step
    assert longest <= 8
    assert all(tokens == text_alone([1, 2], 0, 40) for tokens in told.values())


async def test_an_abort_ends_a_request_with_an_event(client):
    """And only that request."""
    events = []
    client.submit(request("long", 16_000), events.append)
    client.abort("long")
    client.abort("unknown")
    await follow(client, request("other"))
    assert [e.finish for e in events if isinstance(e, EndEvent)] == [FinishReason.ABORT]


async def test_what_can_never_be_served_is_refused_before_it_is_sent(client):
    """By name."""
    with pytest.raises(InvalidParameter, match="prompt"):
        client.check(msgspec.structs.replace(request("x"), prompt=()))
    assert client.in_flight == 0


async def test_a_sink_that_fails_disturbs_nobody(client):
    """One request's mistake."""

    def broken(event) -> None:
        raise RuntimeError("a sink failed")

    client.submit(request("broken"), broken)
    assert len([e for e in await follow(client, request("fine")) if isinstance(e, TokenEvent)]) == 5


async def test_an_engine_that_cannot_be_built_says_why():
    """In one line, and the client is not ready."""

    def impossible(config, progress):
        raise ConfigError("num_pages: there is no memory")

    client = EngineClient(CONFIG, impossible)
    await client.start()
    with pytest.raises(EngineUnavailable, match="num_pages: there is no memory"):
        await asyncio.wait_for(client.ready(), 10)
    assert client.phase is Phase.FAILED
    await client.stop()


async def test_an_engine_that_a_library_cannot_build_says_why_too(caplog: pytest.LogCaptureFixture):
    """An error that nobody foresaw reaches people with its kind, and the log with its place."""

    def impossible(config, progress):
        raise TypeError("float() argument must be a string or a real number, not 'NoneType'")

    client = EngineClient(CONFIG, impossible)
    await client.start()
    with pytest.raises(EngineUnavailable, match=r"TypeError: float\(\) argument"):
        await asyncio.wait_for(client.ready(), 10)
    assert "could not be built" in caplog.text
    await client.stop()


@asynccontextmanager
async def dying(crash_injector: CrashInjector, **more) -> AsyncIterator[EngineClient]:
    """A client whose engines die as `mortal` says."""
    client = EngineClient(CONFIG, partial(fake_engine, crash_injector=crash_injector, **more))
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    yield client
    await client.stop()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before another engine is started."""
    monkeypatch.setattr("app.lives.BACKOFF", 0.0)


def tokens_of(events: Iterable, choice: int = 0) -> list[int]:
    return [event.token_id for event in events if isinstance(event, TokenEvent) and event.choice == choice]


@pytest.mark.parametrize("runs_ahead", [False, True])
async def test_a_death_of_the_engine_costs_no_request_a_token(at_once, runs_ahead: bool):
    """Forty requests, some of two choices, on four slots and ten engines: each token once and in its place. After one
    that died early the next lives long enough to show that nobody was to blame."""
    crash_injector, heard, killed_at = CrashInjector(), 0, [40, 44, 400, 480, 560, 640, 642, 900, 1000]

    def hear(event) -> None:
        nonlocal heard
        heard += isinstance(event, TokenEvent)
        crash_injector.is_killed |= client.restarts < len(killed_at) and heard >= killed_at[client.restarts]

    async with dying(crash_injector, runs_ahead=runs_ahead, costs=Costs(1e9, 1e5, 1e-4, 1e-4)) as client:
        asked = [request(f"r{i}", 3 + i % 41, n=1 + i % 2) for i in range(40)]
        told = await asyncio.gather(*(follow(client, each, hear) for each in asked))
        assert client.restarts > 4 and client.in_flight == 0
    for each, events in zip(asked, told, strict=True):
        for choice in range(each.n):
            assert tokens_of(events, choice) == text_alone([1, 2], choice, each.sampling.max_tokens)
    assert all(any(isinstance(e, StatusEvent) and e.cause is Cause.RESTART for e in events) for events in told[20:])


async def test_who_comes_or_goes_while_the_engine_starts_again_is_heard(at_once):
    """A new request waits and is answered; one that is given up ends and never reaches the next engine."""
    crash_injector, may_start = CrashInjector(after=[5]), threading.Event()
    may_start.set()

    def build(config, progress) -> Engine:
        assert may_start.wait(10)
        return fake_engine(config, progress, crash_injector=crash_injector)

    client, events = EngineClient(CONFIG, build), []
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    may_start.clear()
    first = asyncio.create_task(follow(client, request("first", 20)))
    client.submit(request("given up", 5000, n=2), events.append)
    async with asyncio.timeout(10):
        while client.phase is not Phase.RESTARTING:
            await asyncio.sleep(0.001)
    client.abort("given up", 1)
    client.abort("given up")
    assert not any(isinstance(event, EndEvent) for event in events), "who asks is not told while he asks"
    second = asyncio.create_task(follow(client, request("second", 7)))
    await asyncio.sleep(0.01)
    assert [(e.choice, e.finish) for e in events if isinstance(e, EndEvent)] == [(0, "abort"), (1, "abort")]
    may_start.set()
    assert tokens_of(await first) == text_alone([1, 2], 0, 20)
    assert tokens_of(await second) == text_alone([1, 2], 0, 7)
    await client.stop()


async def test_an_abort_that_the_dying_engine_did_not_hear_is_kept(at_once):
    """It ends all the same, and nobody goes on with it."""
    crash_injector = CrashInjector(after=[3])
    async with dying(crash_injector) as client:
        events: list = []

        def give_up(event) -> None:
            events.append(event)
            if len(tokens_of(events)) == 3:
                client.abort("given up")

        client.submit(request("given up", 16_000), give_up)
        await asyncio.wait_for(follow(client, request("other")), 10)
        assert isinstance(events[-1], EndEvent) and events[-1].finish is FinishReason.ABORT
        assert len(tokens_of(events)) == 3 and client.in_flight == 0


async def test_a_request_that_kills_engines_is_found_and_ends_alone(at_once, caplog: pytest.LogCaptureFixture):
    """Two of them, among thirty that nothing happens to but that they wait."""
    crash_injector = CrashInjector(poison=666)
    async with dying(crash_injector) as client:
        asked = [request(f"r{i}", 30 + i % 7) for i in range(30)]
        asked[3:3] = [replace(request(f"bad{i}"), prompt=(1, 666, i)) for i in range(2)]
        told = await asyncio.gather(*(follow(client, each) for each in asked))
        assert client.phase is Phase.READY
    for each, events in zip(asked, told, strict=True):
        if each.id.startswith("bad"):
            assert [(type(e), e.code) for e in events if getattr(e, "finish", None)] == [(EndEvent, "engine_died")]
            assert f"request {each.id}" in caplog.text
        else:
            assert tokens_of(events) == text_alone([1, 2], 0, each.sampling.max_tokens)


@pytest.mark.parametrize("when", ["let in late", "submitted"])
async def test_it_is_found_wherever_it_kills(at_once, when: str):
    """One that has waited for a slot, beside others that speak; one that nothing was ever heard of. Tried once beside
    those that were cleared, and once alone."""
    crash_injector = CrashInjector(poison=666 if when == "let in late" else -1)

    def build(config, progress) -> Engine:
        engine = fake_engine(config, progress, crash_injector=crash_injector)
        submit = engine.submit

        def submit_or_die(request: Request) -> None:
            if when == "submitted" and 666 in request.prompt:
                raise ChannelClosed
            submit(request)

        engine.submit = submit_or_die
        return engine

    client = EngineClient(CONFIG, build)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    asked = [request(f"r{i}", 40 + 20 * i) for i in range(4)]
    following = [asyncio.create_task(follow(client, each)) for each in asked]
    await asyncio.sleep(0)
    ends: list[tuple[str, int]] = []

    def hear(event) -> None:
        if isinstance(event, EndEvent):
            ends.append((event.code, client.restarts))

    await follow(client, replace(request("bad"), prompt=(1, 666)), hear)
    assert ends == [("engine_died", 3)]
    for each, task in zip(asked, following, strict=True):
        assert tokens_of(await task) == text_alone([1, 2], 0, each.sampling.max_tokens)
    await client.stop()


async def test_engines_that_die_before_anything_comes_of_them_are_not_started_for_ever(at_once):
    """Whoever waits is told, and so is whoever comes."""
    crash_injector = CrashInjector(after=[0] * 100)
    async with dying(crash_injector) as client:
        told = await asyncio.gather(*(follow(client, request(f"r{i}", n=2)) for i in range(20)))
        assert client.phase is Phase.FAILED
        assert crash_injector.engines_started < 2 * FRUITLESS  # first deaths of a request do not count
        assert client.load is None  # nothing runs, whatever ran when last heard of
        for events in told:
            ends = [(e.choice, e.finish, e.code) for e in events if isinstance(e, EndEvent)]
            assert ends in [[(c, "error", code) for c in (0, 1)] for code in ("engine_died", "engine_unavailable")]
        with pytest.raises(EngineUnavailable, match="no other one is started"):
            client.check(request("late"))


async def test_engines_that_die_with_nothing_to_do_are_not_started_for_ever_either(at_once):
    """Killed as soon as they are there."""
    engines_started = 0

    def build(config, progress) -> Engine:
        nonlocal engines_started
        engines_started += 1
        engine = fake_engine(config, progress)

        def die() -> bool:
            raise ChannelClosed

        engine.take_memory = die
        return engine

    client = EngineClient(CONFIG, build)
    await client.start()
    async with asyncio.timeout(20):
        while client.phase is not Phase.FAILED:
            await asyncio.sleep(0.01)
    assert engines_started == FRUITLESS
    await client.stop()


async def test_who_asks_again_for_what_kills_engines_keeps_nobody_else_from_being_served(at_once):
    """As clients do that try again: each time it ends alone."""
    async with dying(CrashInjector(poison=666)) as client:
        for i in range(3):
            events = await follow(client, replace(request(f"bad{i}"), prompt=(1, 666)))
            assert [e.code for e in events if isinstance(e, EndEvent)] == ["engine_died"]
        assert tokens_of(await follow(client, request("good"))) == text_alone([1, 2], 0, 5)


async def test_the_next_engine_has_as_many_pages(at_once):
    """Whatever memory there is by then: an answer may count on all of them."""
    asked = []

    def build(config, progress) -> Engine:
        asked.append(config.num_pages)
        return fake_engine(config, progress, crash_injector=crash_injector)

    crash_injector = CrashInjector(after=[3])
    client = EngineClient(CONFIG, build)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    await follow(client, request("a", 20))
    assert asked == [None, PAGES]
    await client.stop()


async def test_nothing_is_sent_before_the_first_message():
    """A page that is opened while the next engine is being started wants to watch it."""
    life, heard = Life(lambda message: iter(()), print, fake_engine), []
    life.send(Watch(True))
    starting = asyncio.create_task(life.start(CONFIG))
    while not starting.done():
        life.send(Watch(True))
        await asyncio.sleep(0)
    life._channel._hear = lambda message: iter((heard.append(message),))
    async with asyncio.timeout(10):
        while not any(isinstance(message, Ready) for message in heard):
            await asyncio.sleep(0.01)
    await life.end(1.0)


async def test_an_engine_that_cannot_be_built_again_at_once_is_tried_again(at_once):
    """Its memory may be free a moment later."""
    crash_injector, tries = CrashInjector(after=[4]), 0

    def build(config, progress) -> Engine:
        nonlocal tries
        tries += 1
        if tries in (2, 3):
            raise ConfigError("num_pages: there is no memory")
        return fake_engine(config, progress, crash_injector=crash_injector)

    client = EngineClient(CONFIG, build)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    assert tokens_of(await follow(client, request("patient", 20))) == text_alone([1, 2], 0, 20)
    assert tries == 4 and client.restarts == 3
    await client.stop()


async def test_what_a_dead_engine_had_still_to_say_is_not_heard(monkeypatch: pytest.MonkeyPatch):
    """It sends what cannot be read while a step of it is being handed out: the next engine will say the rest."""
    monkeypatch.setattr("app.life.EVENTS_A_TURN", 1)
    heard, lost, load = [], [], fake_engine(CONFIG, lambda *_: None).load()

    def hear(message) -> Iterator[None]:
        for event in message.events:
            heard.append(event)
            yield

    channel = _Channel(hear, lost.append)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(lambda: channel, sock=ours)
    theirs.send(encode(Stepped(tuple(TokenEvent("r", 0, token) for token in range(4)), load)))
    async with asyncio.timeout(10):
        while not heard:
            await asyncio.sleep(0)
    channel.data_received(struct.pack("<I", 2**31))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(heard) < 4 and [why for why in lost if "cannot be read" in why] == lost and len(lost) == 1
    theirs.close()


async def test_an_engine_that_says_nothing_is_replaced(at_once, monkeypatch: pytest.MonkeyPatch):
    """It hangs in a step. One that waits for work or for a complete batch, or computes for long, is left alone."""
    monkeypatch.setattr("engine.worker.BEAT", 0.02)
    hung = threading.Event()
    config = replace(CONFIG, batching="static", batch_size=2, batch_timeout=1.0)

    class Hanging(CrashInjector):
        def step(self, batch, tokens) -> None:
            if self.engines_started == 1 and 666 in tokens[0]:
                hung.wait(20)

    def build(config, progress) -> Engine:
        engine = fake_engine(config, progress, crash_injector=crash_injector)
        submit = engine.submit

        def submit_slowly(request: Request) -> None:
            time.sleep(0.5)
            submit(request)

        engine.submit = submit_slowly
        return engine

    crash_injector = Hanging()
    client = EngineClient(config, build, watchdog=1.0)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    assert tokens_of(await follow(client, request("waits for a batch"))) == text_alone([1, 2], 0, 5)
    await asyncio.sleep(1.2)
    assert tokens_of(await follow(client, request("computes for long"))) == text_alone([1, 2], 0, 5)
    assert client.restarts == 0
    prompt = (1, 666)
    asked = [replace(request(name), prompt=prompt) for name in ("a", "b")]
    for events in await asyncio.gather(*(follow(client, each) for each in asked)):
        assert tokens_of(events) == text_alone(prompt, 0, 5)
    assert client.restarts == 1
    hung.set()
    await client.stop()


async def test_watchers_see_the_next_engine(at_once):
    """Without asking again."""
    crash_injector, seen = CrashInjector(after=[8]), []
    async with dying(crash_injector) as client:
        client.watch(lambda snapshot, load: seen.append(client.restarts))
        await follow(client, request("a", 30))
        async with asyncio.timeout(10):
            while 1 not in seen:
                await asyncio.sleep(0.01)


async def test_a_killed_engine_process_is_replaced_and_the_same_text_goes_on(demo):
    """A real process, kill -9 twice in mid-answer: two choices and their log-probabilities as if nothing had been."""
    client = EngineClient(EngineConfig(model=str(demo), max_num_seqs=4))
    await client.start()
    await asyncio.wait_for(client.ready(), 120)
    sampling = SamplingParams(max_tokens=120, temperature=0.9, seed=7, frequency_penalty=0.3, logprobs=2)
    asked = Request(id="a", prompt=(5, 9, 2), sampling=sampling, n=2)
    undisturbed = [e for e in await follow(client, asked) if isinstance(e, TokenEvent)]
    killed_at, events, done = [30, 150], [], asyncio.Event()

    def sink(event) -> None:
        if isinstance(event, TokenEvent):
            events.append(event)
            if len(events) in killed_at:
                os.kill(client.process.pid, signal.SIGKILL)
            if len(events) == len(undisturbed):
                done.set()

    client.submit(asked, sink)
    await asyncio.wait_for(done.wait(), 60)
    assert client.restarts == 2
    for choice in range(2):
        assert [e for e in events if e.choice == choice] == [e for e in undisturbed if e.choice == choice]
    await client.stop()


MESSAGES = (Submit(request("é" * 50, n=2, said={0: (), 1: (3, 2**32 - 1)})), Abort("x", 1), Watch(True), Abort("y"))


@given(st.lists(st.integers(1, 40), min_size=1))
def test_frames_survive_being_cut_anywhere(sizes: list[int]):
    """A stream socket keeps no borders."""
    stream = b"".join(encode(message) for message in MESSAGES)
    reader, got, at = FrameReader(to_engine), [], 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        got += reader.feed(stream[at : at + size])
        at += size
    assert tuple(got) == MESSAGES


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 2**31),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 1) + b"\x80",
        encode(Watch(True))[:4] + msgspec.msgpack.encode({"type": "watch", "on": 3})[:10].ljust(16, b"\0"),
    ],
)
def test_what_is_no_frame_of_ours_is_refused(data: bytes):
    """Too long, not msgpack, not one of our types."""
    with pytest.raises(ValueError, match=r"\w"):
        FrameReader(to_engine).feed(data)


class FailingBuilder:
    """Builds an engine that dies in its first step; from the second one on nothing can be built, until it is mended."""

    def __init__(self) -> None:
        self.crash_injector = CrashInjector(after=[0])
        self.is_mended = False
        self.built = 0

    def __call__(self, config: EngineConfig, progress) -> Engine:
        self.built += 1
        if self.built > 1 and not self.is_mended:
            raise ConfigError("no memory")
        return fake_engine(config, progress, crash_injector=self.crash_injector)


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.lives.BACKOFF", 0.0)


async def test_a_client_fails_when_no_engine_can_be_started_any_more(no_backoff):
    """Requests end with an error, and `failed` returns the reason."""
    client = EngineClient(CONFIG, FailingBuilder())
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    events = await follow(client, request("waits"))
    assert events[-1].code == "engine_unavailable"
    assert "no memory" in await asyncio.wait_for(client.failed(), 10)
    assert client.phase is Phase.FAILED
    await client.stop()


async def test_a_restart_interval_keeps_starting_engines(no_backoff):
    """Requests end with an error and new ones are refused, until an engine can be started."""
    build = FailingBuilder()
    client = EngineClient(CONFIG, build, restart_interval=0.01)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    events = await follow(client, request("waits"))
    assert events[-1].code == "engine_unavailable"
    assert client.phase is Phase.RETRYING and not client.takes_requests
    with pytest.raises(EngineUnavailable):
        client.check(request("new"))
    tries = build.built
    while build.built < tries + 3:
        await asyncio.sleep(0.01)
    build.is_mended = True
    await asyncio.wait_for(client.ready(), 10)
    assert len(await follow(client, request("served"))) > 1
    await client.stop()


class HangingOnce:
    """Hangs the first engine in the step that computes token 666, until `end`."""

    def __init__(self) -> None:
        self.is_hung, self.end = threading.Event(), threading.Event()
        self.engines_started = 0

    def begin(self) -> None:
        self.engines_started += 1

    def step(self, batch, tokens) -> None:
        if self.engines_started == 1 and 666 in tokens[0]:
            self.is_hung.set()
            self.end.wait(20)


@pytest.fixture
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.client.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("app.client.STALL_SECONDS", 0.3)
    monkeypatch.setattr("app.client.CANARY_SECONDS", 0.1)


async def test_a_long_step_that_makes_progress_is_left_alone_and_one_that_makes_none_is_replaced(at_once, quick_watch):
    """The engine is stalled first, then replaced; the text is the same."""
    hanging = HangingOnce()
    client = EngineClient(CONFIG, partial(fake_engine, crash_injector=hanging), watchdog=1.0)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    following = asyncio.create_task(follow(client, replace(request("a"), prompt=(1, 666))))
    await asyncio.to_thread(hanging.is_hung.wait, 10)
    loop = asyncio.get_running_loop()
    until = loop.time() + 2.0  # twice the watchdog's time
    while loop.time() < until:  # as a long step counts its layers
        client._life.heartbeat.beat()
        assert not client.is_stalled and client.restarts == 0
        await asyncio.sleep(0.01)
    while not client.is_stalled:
        await asyncio.sleep(0.01)
    assert client.restarts == 0
    assert tokens_of(await following) == text_alone((1, 666), 0, 5)
    assert client.restarts == 1 and not client.is_stalled
    hanging.end.set()
    await client.stop()


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
async def test_an_engine_process_that_is_stopped_is_found_and_replaced(demo, quick_watch, is_busy: bool):
    """A real process under SIGSTOP, in mid-answer or with nothing to do; text goes on as if nothing had been."""
    client = EngineClient(EngineConfig(model=str(demo), max_num_seqs=4), watchdog=1.0)
    await client.start()
    await asyncio.wait_for(client.ready(), 120)
    asked = Request(id="a", prompt=(5, 9, 2), sampling=SamplingParams(max_tokens=200, temperature=0.9, seed=7))
    undisturbed = tokens_of(await follow(client, asked))
    stopped = client.process.pid
    heard = 0

    def stop(event: Event) -> None:
        nonlocal heard
        heard += isinstance(event, TokenEvent)
        if is_busy and heard == 30:
            os.kill(stopped, signal.SIGSTOP)

    if not is_busy:
        os.kill(stopped, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while not client.is_stalled:
                await asyncio.sleep(0.01)
            while client.restarts == 0 or client.phase is not Phase.READY:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        events, done = [], asyncio.Event()
        client.submit(asked, lambda event: (events.append(event), stop(event), client.in_flight or done.set()))
        await done.wait()
    assert [e.token_id for e in events if isinstance(e, TokenEvent)] == undisturbed
    assert client.restarts == 1 and client.process.pid != stopped
    await client.stop()


async def test_an_idle_engine_is_asked_for_a_sign_and_left_alone(quick_watch):
    """Longer than the watchdog's time."""
    client = EngineClient(CONFIG, fake_engine, watchdog=0.5)
    await client.start()
    await asyncio.wait_for(client.ready(), 10)
    before = client._life.heartbeat.count
    async with asyncio.timeout(20):
        while client._life.heartbeat.count < before + 10:  # canaries, each a turn of the worker's loop
            assert not client.is_stalled
            await asyncio.sleep(0.01)
    assert client.restarts == 0
    await client.stop()
