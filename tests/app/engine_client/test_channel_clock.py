"""Translation of moments between this process's clock and an engine's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engine_client.channel_clock import MAX_OFFSET_AGE_SECONDS, ChannelClock
from app.engine_client.client import EngineClient
from app.engine_client.in_flight import InFlight
from app.engine_client.member import EngineMember
from app.engine_client.member_counts import ReadyMember
from engine.config import EngineConfig
from engine.ipc import Ready, StepResult, Submit
from engine.types import Phase, Request, SamplingParams, StatusEvent, TokenEvent
from tests.app.engine_client.test_client import CONFIG, fake_engine, follow
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import FakeTransport
from tests.limits import HANG_SECONDS

MAX_OFFSET = 1e6
MAX_DRIFT = 1e-4  # seconds a second
ROUNDING = 1e-6


def request(**more) -> Request:
    return Request(id="a", prompt=(1, 2), sampling=SamplingParams(max_tokens=5), **more)


frames = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 50.0)), min_size=1, max_size=60)


@given(st.floats(-MAX_OFFSET, MAX_OFFSET), st.floats(-MAX_DRIFT, MAX_DRIFT), frames)
def test_a_moment_is_translated_within_the_least_recent_delay_and_the_drift(
    offset: float, drift: float, history: list[tuple[float, float]]
):
    """It is never after the arrival of its frame, and too early by no more than the clocks drift in a minute."""
    clock, now, arrivals = ChannelClock(is_shared=False), 1000.0, []
    for gap, delay in history:
        now += gap  # frames arrive in order, each after a delay of its own
        left = now - delay
        sent = left - (offset + drift * left)
        clock.observe(sent, now)
        arrivals.append((now, delay))
        [event] = clock.from_engine((StatusEvent("a", 0, Phase.DECODE, monotonic_time=sent),))
        recent = min(each for at, each in arrivals if now - at < MAX_OFFSET_AGE_SECONDS / 2)
        drifted = MAX_DRIFT * (MAX_OFFSET_AGE_SECONDS + 50.0) + ROUNDING
        assert event.monotonic_time <= now + ROUNDING
        assert -drifted <= event.monotonic_time - left <= max(recent, 0.0) + drifted


@given(st.floats(-MAX_OFFSET, MAX_OFFSET), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_a_request_is_translated_by_the_same_offset(offset: float, deadline: float, waiting_since: float):
    """Moments that a request does not have stay absent."""
    clock = ChannelClock(is_shared=False)
    clock.observe(500.0 - offset, 500.0)
    there = clock.to_engine(request(deadline=deadline, waiting_since=waiting_since))
    assert there.deadline == pytest.approx(deadline - offset, abs=ROUNDING)
    assert there.waiting_since == pytest.approx(waiting_since - offset, abs=ROUNDING)
    assert clock.to_engine(request(deadline=deadline)).waiting_since is None
    assert clock.to_engine(request()) == request()
    [back] = clock.from_engine((StatusEvent("a", 0, Phase.QUEUED, monotonic_time=there.deadline),))
    assert back.monotonic_time == pytest.approx(deadline, abs=ROUNDING)


def test_nothing_is_translated_for_an_engine_with_the_same_clock():
    """Events and requests are the same objects, whatever the delay of frames."""
    clock, events, wanted = ChannelClock(is_shared=True), (TokenEvent("a", 0, 7),), request(deadline=9.0)
    clock.observe(1.0, 5.0)
    assert clock.offset == 0.0
    assert clock.from_engine(events) is events and clock.to_engine(wanted) is wanted


async def test_a_member_translates_at_its_channel_in_both_directions():
    """Its engine's clock is a million seconds behind; no other part sees a moment of that clock."""
    made, received = [], []

    class Owner:
        """Collects the events of a member."""

        def difference(self, index, info) -> str:
            return ""

        def on_step(self, index, events, result) -> Iterator[None]:
            received.extend(events)
            yield

        def on_ready(self) -> None: ...

        def on_change(self) -> None: ...

    def make(on_message, on_loss) -> FakeTransport:
        made.append(FakeTransport(on_message, shares_clock=False))
        return made[-1]

    in_flight = InFlight(has_several=False)
    member = EngineMember(0, EngineConfig(model="none"), make, in_flight, Owner())
    [channel], now = made, time.monotonic()
    channel.receive(Ready(model_info(64, 4, 4), now - MAX_OFFSET))
    in_flight.add(request(deadline=now + 30.0, waiting_since=now - 1.0), print)
    member.send(in_flight.requests_to_send([ReadyMember(0, 4, None)])[0])
    [sent] = [message.request for message in channel.sent if isinstance(message, Submit)]
    assert sent.deadline == pytest.approx(now + 30.0 - MAX_OFFSET, abs=1.0)
    assert sent.waiting_since == pytest.approx(now - 1.0 - MAX_OFFSET, abs=1.0)
    status = StatusEvent("a", 0, Phase.DECODE, monotonic_time=now - MAX_OFFSET)
    load = fake_engine(CONFIG, lambda *_: None).load()
    channel.receive(StepResult((status, TokenEvent("a", 0, 7)), load, now - MAX_OFFSET))
    assert received[0].monotonic_time == pytest.approx(now, abs=1.0) and received[1] == TokenEvent("a", 0, 7)
    assert received[0].monotonic_time <= time.monotonic()


async def test_an_engine_sends_its_clock_with_every_step(monkeypatch: pytest.MonkeyPatch):
    """Its first frame about requests, `Ready`, has it too, so a channel can translate from the beginning."""
    clocks: list[float] = []
    monkeypatch.setattr(ChannelClock, "observe", lambda self, sent, received: clocks.append(received - sent))
    client = EngineClient(CONFIG, fake_engine)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    assert clocks
    await follow(client, replace(request(), id="b"))
    await client.stop()
    assert len(clocks) > 5 and all(delay >= 0.0 for delay in clocks)
