"""The engine's process from the API's side: frames, failures, a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client import EngineClient, EngineUnavailable, Phase
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import ConfigError, InvalidParameter
from engine.frames import Abort, FrameReader, Submit, Watch, encode, to_engine
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import EndEvent, FinishReason, Request, SamplingParams, TokenEvent
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import MemoryRunner, text_alone

PAGES = 4096  # room for an answer that no test waits for


def fake_engine(config: EngineConfig, progress, costs: Costs = Costs(1e9, 1.0), runs_ahead: bool = False) -> Engine:  # noqa: B008
    """An engine on a made-up model."""
    policy = make_policy(config, costs)
    scheduler = Scheduler(config, policy, num_pages=PAGES, host_pages=8, max_len=4 * PAGES)
    progress("weights", 1, 1)
    info = model_info(PAGES, config.max_num_seqs, 4, max_model_len=4 * PAGES)
    return Engine(config, info, scheduler, MemoryRunner(PAGES, 8, 4, runs_ahead=runs_ahead, ran_dry=False))


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


async def follow(client: EngineClient, wanted: Request) -> list:
    """All events of a request, until every choice has ended."""
    events, done = [], asyncio.Event()
    left = wanted.n

    def sink(event) -> None:
        nonlocal left
        events.append(event)
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
    monkeypatch.setattr("app.client.EVENTS_A_TURN", 8)
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
        client.submit(msgspec.structs.replace(request("x"), prompt=()), print)
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


async def test_a_killed_engine_process_ends_every_request_with_an_error(demo):
    """A real process, kill -9 in mid-answer: nobody waits for ever."""
    client = EngineClient(EngineConfig(model=str(demo), max_num_seqs=4))
    await client.start()
    await asyncio.wait_for(client.ready(), 120)
    events, first = [], asyncio.Event()

    def sink(event) -> None:
        events.append(event)
        if isinstance(event, TokenEvent):
            first.set()

    client.submit(request("a", 500, n=2), sink)
    await asyncio.wait_for(first.wait(), 30)
    os.kill(client.process.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while client.phase is Phase.READY:
            await asyncio.sleep(0.01)
    ends = [e for e in events if isinstance(e, EndEvent)]
    assert sorted((e.choice, e.finish, e.code) for e in ends) == [
        (0, FinishReason.ERROR, "engine_unavailable"),
        (1, FinishReason.ERROR, "engine_unavailable"),
    ]
    assert client.load is None  # nothing runs, whatever ran when last heard of
    with pytest.raises(EngineUnavailable):
        client.submit(request("b"), print)
    await client.stop()


MESSAGES = (Submit(request("é" * 50)), Abort("x", 1), Watch(True), Abort("y"))


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
