"""The log of one request, its readers, and cursors."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit import Intake
from app.client import EngineClient
from app.generation import Generation
from app.registry import EACH, StreamRegistry, size
from app.schemas.answers import UsageReports
from app.schemas.chat import ChatFormat
from app.streams import Cursor, CursorRefused, Delta, Failure, Finished, Numbered, StreamLog, TokenInfo, Usage
from engine.config import EngineConfig
from engine.types import Alternative, EndEvent, FinishReason, Phase, Request, SamplingParams, StatusEvent, TokenEvent
from tests.app.test_text import byte_level


def closed_log(count: int, stream_id: str = "s") -> StreamLog:
    """A finished log of `count` deltas."""
    log = StreamLog(stream_id, "e", "")
    for i in range(count):
        log.append(Delta(0, str(i), 1))
    log.append(Finished(0, "stop"))
    log.append(Usage(1, count, 0))
    return log


def test_no_token_brings_the_garbage_collector_nearer():
    """Its next walk is due after so many objects that it must look at, and a long answer makes none of them."""
    top = (Alternative(5, -1.0),)
    gc.disable()
    try:
        for make in (
            lambda: TokenEvent("r", 0, 7, None, -0.5, top),
            lambda: Delta(0, "word", 1, ()),
            lambda: Numbered(3, None),  # type: ignore[arg-type]
            lambda: TokenInfo(7, -0.5, top, 4),
            lambda: Alternative(5, -1.0),
        ):
            kept = [None] * 1000
            before = gc.get_count()[0]
            for i in range(len(kept)):
                kept[i] = make()  # type: ignore[call-overload]
            assert gc.get_count()[0] - before < 10, type(kept[0])
    finally:
        gc.enable()


async def test_whoever_waits_for_the_end_is_not_woken_before_and_counts_as_a_reader():
    """Who has asked for a whole answer has no use for its tokens one by one."""
    log = StreamLog("s", "e", "")
    waiting = asyncio.create_task(log.closed())
    await asyncio.sleep(0)
    assert log.readers == 1
    (look,) = log.followers
    woken = waiting._fut_waiter  # type: ignore[attr-defined]
    log.append(Delta(0, "x", 1))
    log.announce()
    assert not woken.done() and log.followers == (look,)
    log.append(Usage(1, 0, 0))
    log.announce()
    await asyncio.wait_for(waiting, 5)
    assert (log.readers, log.followers) == (0, ())
    await asyncio.wait_for(log.closed(), 5)  # which it is already


def test_nothing_is_written_behind_the_end():
    """One terminal record, the last."""
    with pytest.raises(AssertionError):
        closed_log(1).append(Delta(0, "x", 1))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_a_cursor_is_one_of_ours_or_refused(text: str):
    """Garbage is a 400 and nothing else."""
    try:
        cursor = Cursor.parse(text)
    except CursorRefused as error:
        assert error.status == 400
    else:
        assert Cursor.parse(str(cursor)) == cursor


class Holder:
    """As much of a generation as the registry looks at."""

    def __init__(self, log: StreamLog) -> None:
        self.log = log
        self.request = Request(id="r", prompt=(1,) * 10, sampling=SamplingParams(max_tokens=1))


def hold(log: StreamLog) -> Generation:
    return Holder(log)  # type: ignore[return-value]


def finish(registry: StreamRegistry, name: str, owner: str = "", records: int = 1) -> None:
    log = StreamLog(name, registry.epoch, owner)
    registry.add(hold(log))
    for _ in range(records - 1):
        log.append(Delta(0, "x", 1))
    log.append(Usage(1, 1, 0))
    registry.finish(hold(log))


def kept(registry: StreamRegistry, names: str, owner: str = "") -> str:
    found = ""
    for name in names:
        with contextlib.suppress(CursorRefused):
            found += registry.get(name, owner).log.id
    return found


def test_finished_streams_expire_oldest_first_and_live_ones_never():
    """By age, and by what they take."""
    registry = StreamRegistry(ttl=10.0, max_size=2 * (EACH + 10) + 10)
    live = hold(StreamLog("live", "e", ""))
    registry.add(live)
    for name in "abc":
        finish(registry, name)
    assert kept(registry, "abc") == "bc"
    finish(registry, "d", records=9)
    assert kept(registry, "abcd") == "cd"
    finish(registry, "e", records=1000)
    assert kept(registry, "abcde") == "e"  # the last one is kept, whatever it takes
    registry.expire(now=lambda: 1e12)
    assert len(registry) == 1
    assert registry.get("live", "") is live


def test_who_keeps_most_lets_go_first():
    """Nobody's answers are lost to another one's flood."""
    registry = StreamRegistry(max_size=10 * EACH)
    finish(registry, "a", "alice")
    for name in "bcdefghijklm":
        finish(registry, name, "bob")
    assert kept(registry, "a", "alice") == "a" and kept(registry, "bcdefghijklm", "bob") == "ghijklm"


def test_a_logit_bias_counts_as_what_it_takes():
    """A thousand entries are kept with each of its streams."""
    holder = Holder(StreamLog("s", "e", ""))
    plain = size(holder)  # type: ignore[arg-type]
    holder.request = Request(
        id="r", prompt=(1,) * 10, sampling=SamplingParams(max_tokens=1, logit_bias={1: 2.0, 3: 4.0})
    )
    assert size(holder) == plain + 2  # type: ignore[arg-type]


def test_log_probabilities_count_as_what_they_take():
    log = StreamLog("s", "e", "")
    info = TokenInfo(5, -1.0, (Alternative(5, -1.0), Alternative(6, -2.0)), 0)
    log.append(Delta(0, "x", 2, (info, info)))
    log.append(Delta(0, "y", 1))
    assert log.details == 6


def test_a_stream_that_is_not_kept_any_more_is_gone_and_not_unknown():
    """For who has a cursor into it; another one's looks the same."""
    registry = StreamRegistry(ttl=10.0)
    finish(registry, "s", "alice")
    for owner in ("bob", "alice"):
        with pytest.raises(CursorRefused, match="has expired") as refused:
            if owner == "alice":
                registry.expire(now=lambda: 1e12)
            registry.find("s", owner, f"s.{registry.epoch}.1")
        assert refused.value.status == 410


def test_somebody_else_s_stream_looks_like_an_unknown_one():
    """404 for both, with the same words."""
    registry = StreamRegistry()
    registry.add(hold(StreamLog("s", "e", "alice")))
    with pytest.raises(CursorRefused) as foreign:
        registry.get("s", "bob")
    assert foreign.value.status == 404
    assert str(foreign.value) == "no stream 's'"


def test_what_was_held_back_for_a_stop_string_is_shown_when_the_answer_is_cancelled():
    """It was said, and that it might have become a stop string matters no more."""
    text = byte_level()
    request = Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50))
    log = StreamLog("r", "e", "")
    client = EngineClient(EngineConfig(model="none"))
    generation = Generation(
        request,
        text,
        (" dog and cat",),
        log,
        ChatFormat("m", "default", text, UsageReports()),
        client,
        Intake(0.0),
    )
    for token_id in text.encode("a dog and", add_special_tokens=False):
        generation.take(TokenEvent("r", 0, token_id))
    assert "".join(r.text for r in log.records if isinstance(r, Delta)) == "a"
    generation.cancel()
    assert "".join(r.text for r in log.records if isinstance(r, Delta)) == "a dog and"
    assert sum(r.tokens for r in log.records if isinstance(r, Delta)) == 9
    assert isinstance(log.records[-1], Usage)


def test_a_choice_beside_makes_the_gaps_between_tokens_no_shorter(monkeypatch):
    """Three choices that each speak every second are a second from token to token."""
    now = 100.0
    monkeypatch.setattr("app.generation.time.monotonic", lambda: now)
    text, gaps = byte_level(), []
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=3),
        text,
        (),
        StreamLog("r", "e", ""),
        ChatFormat("m", "default", text, UsageReports()),
        EngineClient(EngineConfig(model="none")),
        Intake(0.0),
        on_token=lambda gap, waited: gaps.append(gap),
    )
    (token_id,) = text.encode("a", add_special_tokens=False)
    for _ in range(3):
        now += 1.0
        for choice in range(3):
            generation.take(TokenEvent("r", choice, token_id))
    assert gaps == [None] * 3 + [1.0] * 6
    assert generation.mean_gap == 1.0


def test_a_request_stands_where_its_first_choice_that_has_not_ended_stands():
    """Who waits for the second choice is told what it waits for, though the first is there."""
    text = byte_level()
    log = StreamLog("r", "e", "")
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=3),
        text,
        (),
        log,
        ChatFormat("m", "default", text, UsageReports()),
        EngineClient(EngineConfig(model="none")),
        Intake(0.0),
    )
    (token_id,) = text.encode("a", add_special_tokens=False)
    for choice, event, told in (
        (0, Phase.DECODE, Phase.DECODE),
        (1, Phase.PAUSED, Phase.DECODE),
        (2, Phase.DECODE, Phase.DECODE),
        (0, Phase.ENDED, Phase.DECODE),
        (0, None, Phase.PAUSED),
        (2, Phase.QUEUED, Phase.PAUSED),
        (1, Phase.PREFILL, Phase.PREFILL),
        (1, None, Phase.QUEUED),
    ):
        if event is None:
            generation.take(TokenEvent("r", choice, token_id, FinishReason.LENGTH))
        else:
            generation.take(StatusEvent("r", choice, event))
        assert log.status is not None and log.status.phase is told


def test_an_answer_without_numbers_ends_the_request_and_is_logged(caplog: pytest.LogCaptureFixture):
    """Whoever runs the server must know. Of a choice that a stop string has ended already it is nobody's concern."""
    text = byte_level()
    logs = []
    for said, fails in (("a", True), ("a stop", False)):
        log = StreamLog("r", "e", "")
        generation = Generation(
            Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=2),
            text,
            (" stop",),
            log,
            ChatFormat("m", "default", text, UsageReports()),
            EngineClient(EngineConfig(model="none")),
            Intake(0.0),
        )
        for token_id in text.encode(said, add_special_tokens=False):
            generation.take(TokenEvent("r", 0, token_id))
        generation.take(EndEvent("r", 0, FinishReason.ERROR, "it computed NaN", "not_a_number"))
        assert log.is_closed is fails
        assert any(isinstance(record, Failure) and record.code == "not_a_number" for record in log.records) is fails
        logs.append(caplog.text)
    assert logs[0].count("it computed NaN") == logs[1].count("it computed NaN") == 1
