"""The engine process from the API's side: frames, failures, and requests across engine crashes."""

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

from app.engine_client.channel import Channel
from app.engine_client.client import EngineClient, EngineUnavailable
from app.engine_client.engine_process import EngineProcess
from app.engine_client.member import EngineState
from app.engine_client.restart_policy import MAX_FAILED_STARTS
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError, InvalidParameter
from engine.ipc import (
    ENGINE_DECODER,
    Abort,
    ChannelClosed,
    FrameReader,
    Ready,
    StepResult,
    Submit,
    WatchSnapshots,
    encode,
)
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import EndEvent, Event, FinishReason, Request, SamplingParams, StatusEvent, TokenEvent, WaitReason
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import CrashInjector, MemoryRunner, text_alone
from tests.limits import HANG_SECONDS

PAGES = 4096  # enough pages for an answer that no test waits for


def fake_engine(
    config: EngineConfig,
    progress,
    costs: Costs = Costs(1e9, 1e5),  # noqa: B008
    runs_ahead: bool = False,
    crash_injector: CrashInjector | None = None,
) -> Engine:
    """Return an engine with a fake model."""
    if crash_injector is not None:
        crash_injector.start_engine()
    policy = make_policy(config, costs)
    scheduler = Scheduler(config, policy, num_pages=PAGES, host_pages=8, max_len=4 * PAGES)
    progress("weights", 1, 1)
    info = model_info(PAGES, config.max_num_seqs, 4, max_model_len=4 * PAGES)
    runner = MemoryRunner(PAGES, 8, 4, runs_ahead=runs_ahead, device_was_idle=False, crash_injector=crash_injector)
    return Engine(config, info, scheduler, runner)


# An answer takes a step a token, however often it was given before: tests act while it is generated.
CONFIG = EngineConfig(model="fake", max_num_seqs=4, page_size=4, speculation="off")


@pytest.fixture
async def client():
    engine_client = EngineClient(CONFIG, fake_engine)
    await engine_client.start()
    await asyncio.wait_for(engine_client.ready(), HANG_SECONDS)
    yield engine_client
    await engine_client.stop()


def restarts(client: EngineClient) -> int:
    """Return the number of engines that replaced another one."""
    return sum(member.restarts for member in client.members)


def request(name: str, tokens: int = 5, **more) -> Request:
    return Request(id=name, prompt=(1, 2), sampling=SamplingParams(max_tokens=tokens), **more)


async def follow(client: EngineClient, wanted: Request, on_event: Callable[[Event], None] = lambda event: None) -> list:
    """Return all events of a request, after every choice has ended."""
    events, done = [], asyncio.Event()
    left = wanted.n

    def sink(event) -> None:
        nonlocal left
        events.append(event)
        on_event(event)
        left -= getattr(event, "finish", None) is not None
        if not left:
            done.set()

    client.submit(wanted, sink)
    await asyncio.wait_for(done.wait(), HANG_SECONDS)
    return events


async def test_an_engine_that_waits_for_its_device_has_the_same_output():
    """A step of four rows has an estimated duration of 40 ms, and half of it passes before the next step is planned."""
    costs = Costs(1e9, 1e3, 0.01, 0.01)
    client = EngineClient(CONFIG, partial(fake_engine, costs=costs, runs_ahead=True))
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    aborted = request("gone", PAGES)
    client.submit(aborted, lambda event: None)
    results = await asyncio.gather(*(follow(client, request(f"r{i}", 3 + i % 5)) for i in range(40)))
    for i, events in enumerate(results):
        tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
        assert tokens == text_alone([1, 2], 0, 3 + i % 5)
    client.abort(aborted.id)
    await asyncio.wait_for(follow(client, request("last")), HANG_SECONDS)
    await client.stop()


async def test_events_of_many_requests_reach_their_own_sinks(client):
    """Forty requests run on four batch slots."""
    results = await asyncio.gather(*(follow(client, request(f"r{i}", 3 + i % 5)) for i in range(40)))
    for i, events in enumerate(results):
        assert {event.request_id for event in events} == {f"r{i}"}
        tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
        assert tokens == text_alone([1, 2], 0, 3 + i % 5)
    assert client.in_flight == 0


async def test_the_event_loop_runs_between_a_few_events_of_a_step(monkeypatch: pytest.MonkeyPatch):
    """Other tasks run in the middle of a large step, and the order within each stream stays."""
    monkeypatch.setattr("app.engine_client.channel.MAX_EVENTS_PER_TURN", 8)
    client = EngineClient(msgspec.structs.replace(CONFIG, max_num_seqs=64), fake_engine)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    loop, in_a_row, longest, widest = asyncio.get_running_loop(), 0, 0, 0
    streams: dict[str, list[int]] = {f"r{i}": [] for i in range(64)}

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
            streams[event.request_id].append(event.token_id)
            widest = max(widest, sum(len(tokens) == len(streams[event.request_id]) for tokens in streams.values()))

    for name in streams:
        client.submit(request(name, 40), sink)
    while client.in_flight:
        await asyncio.sleep(0.01)
    await client.stop()
    assert widest > 16  # as many rows were in one step
    assert longest <= 8
    assert all(tokens == text_alone([1, 2], 0, 40) for tokens in streams.values())


async def test_an_abort_ends_a_request_with_an_event(client):
    """Only that request ends."""
    events = []
    client.submit(request("long", 16_000), events.append)
    client.abort("long")
    client.abort("unknown")
    await follow(client, request("other"))
    assert [e.finish for e in events if isinstance(e, EndEvent)] == [FinishReason.ABORT]


async def test_an_invalid_request_is_refused_before_it_is_sent(client):
    """The error names the parameter."""
    with pytest.raises(InvalidParameter, match="prompt"):
        client.check(msgspec.structs.replace(request("x"), prompt=()))
    assert client.in_flight == 0


async def test_a_sink_that_fails_does_not_affect_other_requests(client):
    """The failure affects only its own request."""

    def broken(event) -> None:
        raise RuntimeError("a sink failed")

    client.submit(request("broken"), broken)
    assert len([e for e in await follow(client, request("fine")) if isinstance(e, TokenEvent)]) == 5


async def test_an_engine_that_cannot_be_built_reports_the_reason():
    """The reason is one line, and the client is not ready."""

    def impossible(config, progress):
        raise ConfigError("num_pages: there is no memory")

    client = EngineClient(CONFIG, impossible)
    await client.start()
    with pytest.raises(EngineUnavailable, match="num_pages: there is no memory"):
        await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert client.state is EngineState.FAILED
    await client.stop()


async def test_an_unexpected_error_of_the_build_is_reported_too(caplog: pytest.LogCaptureFixture):
    """The kind of an unexpected error is reported, and its traceback is in the log."""

    def impossible(config, progress):
        raise TypeError("float() argument must be a string or a real number, not 'NoneType'")

    client = EngineClient(CONFIG, impossible)
    await client.start()
    with pytest.raises(EngineUnavailable, match=r"TypeError: float\(\) argument"):
        await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert "could not be built" in caplog.text
    await client.stop()


@asynccontextmanager
async def client_with_crashes(crash_injector: CrashInjector, **more) -> AsyncIterator[EngineClient]:
    """Yield a client whose engines crash as `crash_injector` determines."""
    client = EngineClient(CONFIG, partial(fake_engine, crash_injector=crash_injector, **more))
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    yield client
    await client.stop()


@pytest.fixture
def immediate_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the next engine without delay."""
    monkeypatch.setattr("app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS", 0.0)


def tokens_of(events: Iterable, choice: int = 0) -> list[int]:
    return [event.token_id for event in events if isinstance(event, TokenEvent) and event.choice == choice]


@pytest.mark.parametrize("runs_ahead", [False, True])
async def test_no_request_loses_a_token_when_the_engine_crashes(immediate_restart, runs_ahead: bool):
    """Each token of forty requests, some of two choices, arrives once and in order on ten engines."""
    # The engine after one that crashed early must run long enough to show that no request caused the crash.
    crash_injector, received, killed_at = CrashInjector(), 0, [40, 44, 400, 480, 560, 640, 642, 900, 1000]

    def on_event(event) -> None:
        nonlocal received
        received += isinstance(event, TokenEvent)
        # The death of an engine in a trial ends that request.
        on_trial = any((found := client._in_flight.get(each.id)) and found.is_suspect for each in requests)
        may_die = restarts(client) < len(killed_at) and received >= killed_at[restarts(client)]
        crash_injector.is_killed |= may_die and not on_trial

    requests = [request(f"r{i}", 3 + i % 41, n=1 + i % 2) for i in range(40)]
    async with client_with_crashes(crash_injector, runs_ahead=runs_ahead, costs=Costs(1e9, 1e5, 1e-4, 1e-4)) as client:
        results = await asyncio.gather(*(follow(client, each, on_event) for each in requests))
        assert restarts(client) > 4 and client.in_flight == 0
    for each, events in zip(requests, results, strict=True):
        for choice in range(each.n):
            assert tokens_of(events, choice) == text_alone([1, 2], choice, each.sampling.max_tokens)
    assert all(
        any(isinstance(e, StatusEvent) and e.cause is WaitReason.RESTART for e in events) for events in results[20:]
    )


async def test_submit_and_abort_work_while_the_engine_restarts(immediate_restart):
    """A new request waits and is answered, and an aborted one ends and never reaches the next engine."""
    crash_injector, may_start = CrashInjector(steps=[5]), threading.Event()
    may_start.set()

    def build(config, progress) -> Engine:
        assert may_start.wait(HANG_SECONDS)
        return fake_engine(config, progress, crash_injector=crash_injector)

    client, events = EngineClient(CONFIG, build), []
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    may_start.clear()
    first = asyncio.create_task(follow(client, request("first", 20)))
    client.submit(request("aborted", 5000, n=2), events.append)
    async with asyncio.timeout(HANG_SECONDS):
        while client.state is not EngineState.RESTARTING:
            await asyncio.sleep(0.001)
    client.abort("aborted", 1)
    client.abort("aborted")
    assert not any(isinstance(event, EndEvent) for event in events), "the end is reported later than abort() returns"
    second = asyncio.create_task(follow(client, request("second", 7)))
    await asyncio.sleep(0.01)
    assert [(e.choice, e.finish) for e in events if isinstance(e, EndEvent)] == [(0, "abort"), (1, "abort")]
    may_start.set()
    assert tokens_of(await first) == text_alone([1, 2], 0, 20)
    assert tokens_of(await second) == text_alone([1, 2], 0, 7)
    await client.stop()


async def test_an_abort_that_the_crashed_engine_did_not_receive_is_kept(immediate_restart):
    """The request ends nevertheless, and no engine continues it."""
    crash_injector = CrashInjector(steps=[3])
    async with client_with_crashes(crash_injector) as client:
        events: list = []

        def abort_after_three(event) -> None:
            events.append(event)
            if len(tokens_of(events)) == 3:
                client.abort("aborted")

        client.submit(request("aborted", 16_000), abort_after_three)
        await asyncio.wait_for(follow(client, request("other")), HANG_SECONDS)
        assert isinstance(events[-1], EndEvent) and events[-1].finish is FinishReason.ABORT
        assert len(tokens_of(events)) == 3 and client.in_flight == 0


async def test_a_request_that_crashes_engines_is_found_and_only_it_ends(
    immediate_restart, caplog: pytest.LogCaptureFixture
):
    """Two such requests end, and thirty others are only delayed."""
    crash_injector = CrashInjector(poison_token=666)
    async with client_with_crashes(crash_injector) as client:
        requests = [request(f"r{i}", 30 + i % 7) for i in range(30)]
        requests[3:3] = [replace(request(f"bad{i}"), prompt=(1, 666, i)) for i in range(2)]
        results = await asyncio.gather(*(follow(client, each) for each in requests))
        assert client.state is EngineState.READY
    for each, events in zip(requests, results, strict=True):
        if each.id.startswith("bad"):
            assert [(type(e), e.code) for e in events if getattr(e, "finish", None)] == [(EndEvent, "engine_died")]
            assert f"request {each.id}" in caplog.text
        else:
            assert tokens_of(events) == text_alone([1, 2], 0, each.sampling.max_tokens)


@pytest.mark.parametrize("when", ["admitted late", "submitted"])
async def test_a_crashing_request_is_found_wherever_it_crashes(immediate_restart, when: str):
    """The request waited for a slot, or the engine dies of it before a step; the third engine computes it alone."""
    crash_injector = CrashInjector(poison_token=666 if when == "admitted late" else -1)

    def build(config, progress) -> Engine:
        engine = fake_engine(config, progress, crash_injector=crash_injector)
        submit = engine.submit

        def submit_or_crash(request: Request) -> None:
            if when == "submitted" and 666 in request.prompt:
                raise ChannelClosed
            submit(request)

        engine.submit = submit_or_crash
        return engine

    client = EngineClient(CONFIG, build)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    requests = [request(f"r{i}", 40 + 20 * i) for i in range(4)]
    following = [asyncio.create_task(follow(client, each)) for each in requests]
    await asyncio.sleep(0)
    ends: list[tuple[str, int]] = []

    def on_event(event) -> None:
        if isinstance(event, EndEvent):
            ends.append((event.code, restarts(client)))

    await follow(client, replace(request("bad"), prompt=(1, 666)), on_event)
    assert ends == [("engine_died", 2)]
    for each, task in zip(requests, following, strict=True):
        assert tokens_of(await task) == text_alone([1, 2], 0, each.sampling.max_tokens)
    await client.stop()


async def test_engines_that_crash_without_progress_are_not_restarted_for_ever(immediate_restart):
    """Waiting requests and new ones get an error."""
    crash_injector = CrashInjector(steps=[0] * 100)
    async with client_with_crashes(crash_injector) as client:
        results = await asyncio.gather(*(follow(client, request(f"r{i}", n=2)) for i in range(20)))
        assert client.state is EngineState.FAILED
        assert (
            crash_injector.engines_started < 2 * MAX_FAILED_STARTS
        )  # the first crash with a given request is not counted
        assert client.members[0].load is None  # nothing runs, so the last reported load is void
        for events in results:
            ends = [(e.choice, e.finish, e.code) for e in events if isinstance(e, EndEvent)]
            assert ends in [[(c, "error", code) for c in (0, 1)] for code in ("engine_died", "engine_unavailable")]
        with pytest.raises(EngineUnavailable, match="no other one is started"):
            client.check(request("late"))


async def test_engines_that_crash_while_idle_are_not_restarted_for_ever(immediate_restart):
    """Each engine crashes as soon as it is ready."""
    engines_started = 0

    def build(config, progress) -> Engine:
        nonlocal engines_started
        engines_started += 1
        engine = fake_engine(config, progress)

        def crash() -> bool:
            raise ChannelClosed

        engine.prefault_pages = crash
        return engine

    client = EngineClient(CONFIG, build)
    await client.start()
    async with asyncio.timeout(HANG_SECONDS):
        while client.state is not EngineState.FAILED:
            await asyncio.sleep(0.01)
    assert engines_started == MAX_FAILED_STARTS
    await client.stop()


async def test_retries_of_a_crashing_request_do_not_stop_other_requests(immediate_restart):
    """A client that retries such a request gets an error each time, and other requests are served."""
    async with client_with_crashes(CrashInjector(poison_token=666)) as client:
        for i in range(3):
            events = await follow(client, replace(request(f"bad{i}"), prompt=(1, 666)))
            assert [e.code for e in events if isinstance(e, EndEvent)] == ["engine_died"]
        assert tokens_of(await follow(client, request("good"))) == text_alone([1, 2], 0, 5)


async def test_the_next_engine_has_as_many_pages(immediate_restart):
    """The number does not depend on the memory that is free by then, since running requests rely on it."""
    built_with = []

    def build(config, progress) -> Engine:
        built_with.append(config.num_pages)
        return fake_engine(config, progress, crash_injector=crash_injector)

    crash_injector = CrashInjector(steps=[3])
    client = EngineClient(CONFIG, build)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    await follow(client, request("a", 20))
    assert built_with == [None, PAGES]
    await client.stop()


async def test_messages_before_the_connection_are_dropped():
    """A page may subscribe to engine events while the next engine is starting."""
    process, received = EngineProcess(lambda message: iter(()), print, fake_engine), []
    process.send(WatchSnapshots(True))
    starting = asyncio.create_task(process.start(CONFIG))
    while not starting.done():
        process.send(WatchSnapshots(True))
        await asyncio.sleep(0)
    process._channel._receive = lambda message: iter((received.append(message),))
    async with asyncio.timeout(HANG_SECONDS):
        while not any(isinstance(message, Ready) for message in received):
            await asyncio.sleep(0.01)
    await process.close(1.0)


async def test_a_failed_rebuild_of_the_engine_is_retried(immediate_restart):
    """Its memory may be free a moment later."""
    crash_injector, tries = CrashInjector(steps=[4]), 0

    def build(config, progress) -> Engine:
        nonlocal tries
        tries += 1
        if tries in (2, 3):
            raise ConfigError("num_pages: there is no memory")
        return fake_engine(config, progress, crash_injector=crash_injector)

    client = EngineClient(CONFIG, build)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert tokens_of(await follow(client, request("patient", 20))) == text_alone([1, 2], 0, 20)
    assert tries == 4 and restarts(client) == 3
    await client.stop()


async def test_pending_events_of_a_lost_engine_are_dropped(monkeypatch: pytest.MonkeyPatch):
    """A connection that sends invalid data in the middle of a step is closed, and the next engine computes the rest."""
    monkeypatch.setattr("app.engine_client.channel.MAX_EVENTS_PER_TURN", 1)
    received, lost, load = [], [], fake_engine(CONFIG, lambda *_: None).load()

    def on_event(message) -> Iterator[None]:
        for event in message.events:
            received.append(event)
            yield

    channel = Channel(on_event, lost.append)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(lambda: channel, sock=ours)
    theirs.send(encode(StepResult(tuple(TokenEvent("r", 0, token) for token in range(4)), load, 0.0)))
    async with asyncio.timeout(HANG_SECONDS):
        while not received:
            await asyncio.sleep(0)
    channel.data_received(struct.pack("<I", 2**31))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(received) < 4 and [why for why in lost if "cannot be read" in why] == lost and len(lost) == 1
    theirs.close()


async def test_an_engine_without_a_heartbeat_is_replaced(immediate_restart, monkeypatch: pytest.MonkeyPatch):
    """An engine that hangs in a step is replaced, but not one that waits for work or a full batch, or computes long."""
    monkeypatch.setattr("engine.worker.HEARTBEAT_SECONDS", 0.02)
    hung = threading.Event()
    config = replace(CONFIG, batching="static", batch_size=2, batch_timeout=1.0)

    class HangingInjector(CrashInjector):
        def step(self, batch, tokens) -> None:
            if self.engines_started == 1 and 666 in tokens[0]:
                hung.wait(HANG_SECONDS)

    def build(config, progress) -> Engine:
        engine = fake_engine(config, progress, crash_injector=crash_injector)
        submit = engine.submit

        def submit_slowly(request: Request) -> None:
            time.sleep(0.5)
            submit(request)

        engine.submit = submit_slowly
        return engine

    crash_injector = HangingInjector()
    client = EngineClient(config, build, watchdog=1.0)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert tokens_of(await follow(client, request("waits for a batch"))) == text_alone([1, 2], 0, 5)
    await asyncio.sleep(1.2)
    assert tokens_of(await follow(client, request("computes for long"))) == text_alone([1, 2], 0, 5)
    assert restarts(client) == 0
    prompt = (1, 666)
    requests = [replace(request(name), prompt=prompt) for name in ("a", "b")]
    for events in await asyncio.gather(*(follow(client, each) for each in requests)):
        assert tokens_of(events) == text_alone(prompt, 0, 5)
    assert restarts(client) == 1
    hung.set()
    await client.stop()


async def test_watchers_see_the_next_engine(immediate_restart):
    """The subscription need not be renewed."""
    crash_injector, seen = CrashInjector(steps=[8]), []
    async with client_with_crashes(crash_injector) as client:
        client.snapshots.watch(lambda index, snapshot, load: seen.append(restarts(client)))
        await follow(client, request("a", 30))
        async with asyncio.timeout(HANG_SECONDS):
            while 1 not in seen:
                await asyncio.sleep(0.01)


async def test_a_killed_engine_process_is_replaced_and_the_text_continues(demo):
    """A real process is killed twice during an answer, and both choices and their log-probabilities stay the same."""
    client = EngineClient(EngineConfig(model=str(demo), max_num_seqs=4))
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    sampling = SamplingParams(max_tokens=120, temperature=0.9, seed=7, frequency_penalty=0.3, logprobs=2)
    wanted = Request(id="a", prompt=(5, 9, 2), sampling=sampling, n=2)
    undisturbed = [e for e in await follow(client, wanted) if isinstance(e, TokenEvent)]
    killed_at, events, done = [30, 150], [], asyncio.Event()

    def sink(event) -> None:
        if isinstance(event, TokenEvent):
            events.append(event)
            if len(events) in killed_at:
                os.kill(client.members[0].engine.process.pid, signal.SIGKILL)
            if len(events) == len(undisturbed):
                done.set()

    client.submit(wanted, sink)
    await asyncio.wait_for(done.wait(), HANG_SECONDS)
    assert restarts(client) == 2
    for choice in range(2):
        assert [e for e in events if e.choice == choice] == [e for e in undisturbed if e.choice == choice]
    await client.stop()


MESSAGES = (
    Submit(request("é" * 50, n=2, output_so_far={0: (), 1: (3, 2**32 - 1)})),
    Abort("x", 1),
    WatchSnapshots(True),
    Abort("y"),
)


@given(st.lists(st.integers(1, 40), min_size=1))
def test_frames_survive_being_cut_anywhere(sizes: list[int]):
    """A stream socket does not preserve message boundaries."""
    stream = b"".join(encode(message) for message in MESSAGES)
    reader, received, at = FrameReader(ENGINE_DECODER), [], 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        received += reader.feed(stream[at : at + size])
        at += size
    assert tuple(received) == MESSAGES


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 2**31),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 1) + b"\x80",
        struct.pack("<I", 16) + msgspec.msgpack.encode({"type": "watch", "is_enabled": 3})[:10].ljust(16, b"\0"),
    ],
)
def test_an_invalid_frame_is_refused(data: bytes):
    """The data is too long, not msgpack, or has an unknown type."""
    with pytest.raises(ValueError, match=r"\w"):
        FrameReader(ENGINE_DECODER).feed(data)


class FailingBuilder:
    """Builder of an engine that crashes in its first step; further builds fail until `is_repaired` is set."""

    def __init__(self) -> None:
        self.crash_injector = CrashInjector(steps=[0])
        self.is_repaired = False
        self.built = 0

    def __call__(self, config: EngineConfig, progress) -> Engine:
        self.built += 1
        if self.built > 1 and not self.is_repaired:
            raise ConfigError("no memory")
        return fake_engine(config, progress, crash_injector=self.crash_injector)


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine_client.restart_policy.INITIAL_BACKOFF_SECONDS", 0.0)


async def test_a_client_fails_when_no_engine_can_be_started_any_more(no_backoff):
    """Requests end with an error, and `failed` returns the reason."""
    client = EngineClient(CONFIG, FailingBuilder())
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    events = await follow(client, request("waits"))
    assert events[-1].code == "engine_unavailable"
    assert "no memory" in await asyncio.wait_for(client.failed(), HANG_SECONDS)
    assert client.state is EngineState.FAILED
    await client.stop()


async def test_a_restart_interval_keeps_starting_engines(no_backoff):
    """Requests end with an error and new ones are refused, until an engine can be started."""
    build = FailingBuilder()
    client = EngineClient(CONFIG, build, restart_interval=0.01)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    events = await follow(client, request("waits"))
    assert events[-1].code == "engine_unavailable"
    assert client.state is EngineState.RETRYING and not client.accepts_requests
    with pytest.raises(EngineUnavailable):
        client.check(request("new"))
    tries = build.built
    while build.built < tries + 3:
        await asyncio.sleep(0.01)
    build.is_repaired = True
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert len(await follow(client, request("served"))) > 1
    await client.stop()


class HangingOnce:
    """Hangs the first engine in the step that computes token 666, until `end` is set."""

    def __init__(self) -> None:
        self.is_hung, self.end = threading.Event(), threading.Event()
        self.engines_started = 0

    def start_engine(self) -> None:
        self.engines_started += 1

    def step(self, batch, tokens) -> None:
        if self.engines_started == 1 and 666 in tokens[0]:
            self.is_hung.set()
            self.end.wait(HANG_SECONDS)


@pytest.fixture
def short_watchdog_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine_client.member.HEARTBEAT_POLL_SECONDS", 0.02)
    monkeypatch.setattr("app.engine_client.member.STALL_SECONDS", 0.3)
    monkeypatch.setattr("app.engine_client.member.ECHO_AFTER_SECONDS", 0.1)


async def test_a_long_step_with_progress_is_tolerated_and_one_without_is_replaced(
    immediate_restart, short_watchdog_intervals
):
    """The engine is stalled first, then replaced, and the text is the same."""
    hanging = HangingOnce()
    client = EngineClient(CONFIG, partial(fake_engine, crash_injector=hanging), watchdog=1.0)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    following = asyncio.create_task(follow(client, replace(request("a"), prompt=(1, 666))))
    await asyncio.to_thread(hanging.is_hung.wait, 10)
    loop = asyncio.get_running_loop()
    until = loop.time() + 2.0  # twice the watchdog's time
    while loop.time() < until:  # simulates a long step, which counts its layers
        client.members[0].engine.heartbeat.beat()
        assert not client.is_stalled and restarts(client) == 0
        await asyncio.sleep(0.01)
    while not client.is_stalled:
        await asyncio.sleep(0.01)
    assert restarts(client) == 0
    assert tokens_of(await following) == text_alone((1, 666), 0, 5)
    assert restarts(client) == 1 and not client.is_stalled
    hanging.end.set()
    await client.stop()


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "idle"])
async def test_an_engine_process_that_is_stopped_is_found_and_replaced(demo, short_watchdog_intervals, is_busy: bool):
    """A real process is stopped with SIGSTOP, busy or idle, and the text continues unchanged."""
    client = EngineClient(EngineConfig(model=str(demo), max_num_seqs=4), watchdog=1.0)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    wanted = Request(id="a", prompt=(5, 9, 2), sampling=SamplingParams(max_tokens=200, temperature=0.9, seed=7))
    undisturbed = tokens_of(await follow(client, wanted))
    stopped = client.members[0].engine.process.pid
    received = 0

    def stop(event: Event) -> None:
        nonlocal received
        received += isinstance(event, TokenEvent)
        if is_busy and received == 30:
            os.kill(stopped, signal.SIGSTOP)

    if not is_busy:
        os.kill(stopped, signal.SIGSTOP)
        async with asyncio.timeout(HANG_SECONDS):
            while not client.is_stalled:
                await asyncio.sleep(0.01)
            while restarts(client) == 0 or client.state is not EngineState.READY:
                await asyncio.sleep(0.01)
    async with asyncio.timeout(HANG_SECONDS):
        events, done = [], asyncio.Event()
        client.submit(wanted, lambda event: (events.append(event), stop(event), client.in_flight or done.set()))
        await done.wait()
    assert [e.token_id for e in events if isinstance(e, TokenEvent)] == undisturbed
    assert restarts(client) == 1 and client.members[0].engine.process.pid != stopped
    await client.stop()


async def test_an_idle_engine_answers_echo_requests_and_is_not_replaced(short_watchdog_intervals):
    """The idle time is longer than the watchdog's."""
    client = EngineClient(CONFIG, fake_engine, watchdog=0.5)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    before = client.members[0].engine.heartbeat.count
    async with asyncio.timeout(HANG_SECONDS):
        while client.members[0].engine.heartbeat.count < before + 10:  # echo requests, each a turn of the worker's loop
            assert not client.is_stalled
            await asyncio.sleep(0.01)
    assert restarts(client) == 0
    await client.stop()


async def test_an_engine_process_that_cannot_be_started_is_a_reason_and_no_traceback(monkeypatch: pytest.MonkeyPatch):
    """For example at a limit of processes; callers of `ready` get it."""

    def spawn(*arguments: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("app.engine_client.engine_process._spawn", spawn)
    client = EngineClient(EngineConfig(model="none"))
    await client.start()
    with pytest.raises(EngineUnavailable, match=r"cannot be started: .*temporarily unavailable"):
        await client.ready()
    await client.stop()
