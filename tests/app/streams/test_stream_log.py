"""The log of one request, its readers, and cursors."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine_client.client import EngineClient
from app.generation.choice import OutputOptions
from app.generation.generation import Generation
from app.generation.registry import MIN_STREAM_SIZE, StreamRegistry, stream_size
from app.generation.request import AnswerHead
from app.protocols.answers import UsageReports
from app.protocols.chat import ChatEncoder
from app.streams.stream_log import (
    ChoiceFinished,
    Cursor,
    CursorError,
    Delta,
    Failure,
    LogEntry,
    StreamLog,
    TokenInfo,
    Usage,
)
from app.streams.timeline import IntakeTimeline
from engine.config import EngineConfig
from engine.types import Alternative, EndEvent, FinishReason, Phase, Request, SamplingParams, StatusEvent, TokenEvent
from tests.app.text.test_text_model import byte_level
from tests.limits import HANG_SECONDS


def closed_log(count: int, stream_id: str = "s") -> StreamLog:
    """Return a finished log of `count` deltas."""
    log = StreamLog(stream_id, "e", "")
    for i in range(count):
        log.append(Delta(0, str(i), 1))
    log.append(ChoiceFinished(0, "stop"))
    log.append(Usage(1, count, 0))
    return log


def test_tokens_create_no_objects_that_the_garbage_collector_tracks():
    """The collector runs after a number of new tracked objects, and the objects of a token are untracked."""
    top = (Alternative(5, -1.0),)
    gc.disable()
    try:
        for make in (
            lambda: TokenEvent("r", 0, 7, None, -0.5, top),
            lambda: Delta(0, "word", 1, ()),
            lambda: LogEntry(3, None),  # type: ignore[arg-type]
            lambda: TokenInfo(7, -0.5, top, 4),
            lambda: Alternative(5, -1.0),
        ):
            objects = [None] * 1000
            before = gc.get_count()[0]
            for i in range(len(objects)):
                objects[i] = make()  # type: ignore[call-overload]
            assert gc.get_count()[0] - before < 10, type(objects[0])
    finally:
        gc.enable()


async def test_a_reader_of_the_whole_log_is_woken_only_at_its_end():
    """A reader of a whole answer has no use for single tokens."""
    log = StreamLog("s", "e", "")
    waiting = asyncio.create_task(log.closed())
    await asyncio.sleep(0)
    assert log.readers == 1
    (listener,) = log.listeners
    woken = waiting._fut_waiter  # type: ignore[attr-defined]
    log.append(Delta(0, "x", 1))
    log.notify()
    assert not woken.done() and log.listeners == (listener,)
    log.append(Usage(1, 0, 0))
    log.notify()
    await asyncio.wait_for(waiting, HANG_SECONDS)
    assert (log.readers, log.listeners) == (0, ())
    await asyncio.wait_for(log.closed(), HANG_SECONDS)  # the log is closed already


def test_nothing_is_appended_after_the_end():
    """The terminal record is the last one, and there is only one."""
    with pytest.raises(AssertionError):
        closed_log(1).append(Delta(0, "x", 1))


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_a_cursor_is_valid_or_refused(text: str):
    """An invalid cursor is a 400 and nothing else."""
    try:
        cursor = Cursor.parse(text)
    except CursorError as error:
        assert error.status == 400
    else:
        assert Cursor.parse(str(cursor)) == cursor


class FakeGeneration:
    """The part of a generation that the registry uses."""

    def __init__(self, log: StreamLog, tenant: str = "") -> None:
        self.log = log
        self.request = Request(id="r", prompt=(1,) * 10, sampling=SamplingParams(max_tokens=1), tenant=tenant)


def as_generation(log: StreamLog, tenant: str = "") -> Generation:
    return FakeGeneration(log, tenant)  # type: ignore[return-value]


def finish(registry: StreamRegistry, name: str, owner: str = "", records: int = 1, tenant: str = "") -> None:
    log = StreamLog(name, registry.epoch, owner)
    registry.add(as_generation(log, tenant or owner))
    for _ in range(records - 1):
        log.append(Delta(0, "x", 1))
    log.append(Usage(1, 1, 0))
    registry.finish(as_generation(log, tenant or owner))


def available(registry: StreamRegistry, names: str, owner: str = "") -> str:
    found = ""
    for name in names:
        with contextlib.suppress(CursorError):
            found += registry.get(name, owner).log.id
    return found


def test_finished_streams_expire_oldest_first_and_live_ones_never():
    """Streams expire by age and by total size."""
    registry = StreamRegistry(ttl=10.0, max_size=2 * (MIN_STREAM_SIZE + 10) + 10)
    live = as_generation(StreamLog("live", "e", ""))
    registry.add(live)
    for name in "abc":
        finish(registry, name)
    assert available(registry, "abc") == "bc"
    finish(registry, "d", records=9)
    assert available(registry, "abcd") == "cd"
    finish(registry, "e", records=1000)
    assert available(registry, "abcde") == "e"  # the last one is kept regardless of its size
    registry.expire(now=lambda: 1e12)
    assert len(registry) == 1
    assert registry.get("live", "") is live


def test_the_owner_with_the_most_kept_data_is_evicted_first():
    """A flood of one owner does not evict the streams of another."""
    registry = StreamRegistry(max_size=10 * MIN_STREAM_SIZE)
    finish(registry, "a", "alice")
    for name in "bcdefghijklm":
        finish(registry, name, "bob")
    assert available(registry, "a", "alice") == "a" and available(registry, "bcdefghijklm", "bob") == "ghijklm"


def test_networks_without_keys_do_not_evict_each_other():
    """They share one owner, and still each has its own streams evicted first."""
    registry = StreamRegistry(max_size=10 * MIN_STREAM_SIZE)
    finish(registry, "a", tenant="home")
    for name in "bcdefghijklm":
        finish(registry, name, tenant="flood")
    assert available(registry, "abcdefghijklm") == "aghijklm"


def test_many_tenants_with_one_stream_each_are_bounded_together():
    """The largest stream goes first, also if its tenant has no other."""
    registry = StreamRegistry(max_size=5 * MIN_STREAM_SIZE)
    for name in "abcdefgh":
        finish(registry, name, tenant=name, records=2 if name == "b" else 1)
    assert available(registry, "abcdefgh") == "efgh"


def test_a_logit_bias_counts_by_its_size():
    """A thousand entries are kept with each of its streams."""
    generation = FakeGeneration(StreamLog("s", "e", ""))
    plain = stream_size(generation)  # type: ignore[arg-type]
    generation.request = Request(
        id="r", prompt=(1,) * 10, sampling=SamplingParams(max_tokens=1, logit_bias={1: 2.0, 3: 4.0})
    )
    assert stream_size(generation) == plain + 2  # type: ignore[arg-type]


def test_log_probabilities_count_by_their_number():
    log = StreamLog("s", "e", "")
    info = TokenInfo(5, -1.0, (Alternative(5, -1.0), Alternative(6, -2.0)), 0)
    log.append(Delta(0, "x", 2, (info, info)))
    log.append(Delta(0, "y", 1))
    assert log.logprob_count == 6


def test_an_expired_stream_is_gone_and_not_unknown():
    """The error is 410 for any cursor of this server, whether the stream exists or not."""
    registry = StreamRegistry(ttl=10.0)
    finish(registry, "s", "alice")
    for owner in ("bob", "alice"):
        with pytest.raises(CursorError, match="has expired") as refused:
            if owner == "alice":
                registry.expire(now=lambda: 1e12)
            registry.resume("s", owner, f"s.{registry.epoch}.1")
        assert refused.value.status == 410


def test_a_foreign_stream_looks_like_an_unknown_one():
    """The response is 404 with the same text for both."""
    registry = StreamRegistry()
    registry.add(as_generation(StreamLog("s", "e", "alice")))
    with pytest.raises(CursorError) as foreign:
        registry.get("s", "bob")
    assert foreign.value.status == 404
    assert str(foreign.value) == "no stream 's'"


def test_text_held_back_for_a_stop_string_is_emitted_on_cancellation():
    """The text was generated, and a possible stop string no longer matters."""
    text = byte_level()
    request = Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50))
    log = StreamLog("r", "e", "")
    client = EngineClient(EngineConfig(model="none"))
    generation = Generation(
        request,
        text,
        OutputOptions((" dog and cat",)),
        log,
        ChatEncoder(AnswerHead("m", "default", text, 1), UsageReports()),
        client,
        IntakeTimeline(0.0),
    )
    for token_id in text.encode("a dog and", add_special_tokens=False):
        generation.handle_event(TokenEvent("r", 0, token_id))
    assert "".join(r.text for r in log.records if isinstance(r, Delta)) == "a"
    generation.cancel()
    assert "".join(r.text for r in log.records if isinstance(r, Delta)) == "a dog and"
    assert sum(r.tokens for r in log.records if isinstance(r, Delta)) == 9
    assert isinstance(log.records[-1], Usage)


def test_gaps_between_tokens_are_measured_per_choice(monkeypatch):
    """With three choices that each emit a token every second, the gaps are one second."""
    now = 100.0
    monkeypatch.setattr("app.generation.generation.time.monotonic", lambda: now)
    text, gaps = byte_level(), []
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=3),
        text,
        OutputOptions(),
        StreamLog("r", "e", ""),
        ChatEncoder(AnswerHead("m", "default", text, 1), UsageReports()),
        EngineClient(EngineConfig(model="none")),
        IntakeTimeline(0.0),
    )
    generation.connect(lambda _: None, lambda _: None, lambda gap, waited: gaps.append(gap))
    (token_id,) = text.encode("a", add_special_tokens=False)
    for _ in range(3):
        now += 1.0
        for choice in range(3):
            generation.handle_event(TokenEvent("r", choice, token_id))
    assert gaps == [None] * 3 + [1.0] * 6
    assert generation.mean_gap == 1.0


def test_the_status_of_a_request_is_that_of_its_first_unfinished_choice():
    """A client that waits for the second choice gets the status of that choice."""
    text = byte_level()
    log = StreamLog("r", "e", "")
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=3),
        text,
        OutputOptions(),
        log,
        ChatEncoder(AnswerHead("m", "default", text, 1), UsageReports()),
        EngineClient(EngineConfig(model="none")),
        IntakeTimeline(0.0),
    )
    (token_id,) = text.encode("a", add_special_tokens=False)
    for choice, event, expected in (
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
            generation.handle_event(TokenEvent("r", choice, token_id, FinishReason.LENGTH))
        else:
            generation.handle_event(StatusEvent("r", choice, event))
        assert log.status is not None and log.status.phase is expected


def test_a_nan_ends_the_request_and_is_logged(caplog: pytest.LogCaptureFixture):
    """The error is logged once, and not for a choice that a stop string has ended already."""
    text = byte_level()
    logs = []
    for generated, fails in (("a", True), ("a stop", False)):
        log = StreamLog("r", "e", "")
        generation = Generation(
            Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50), n=2),
            text,
            OutputOptions((" stop",)),
            log,
            ChatEncoder(AnswerHead("m", "default", text, 1), UsageReports()),
            EngineClient(EngineConfig(model="none")),
            IntakeTimeline(0.0),
        )
        for token_id in text.encode(generated, add_special_tokens=False):
            generation.handle_event(TokenEvent("r", 0, token_id))
        generation.handle_event(EndEvent("r", 0, FinishReason.ERROR, "it computed NaN", "not_a_number"))
        assert log.is_closed is fails
        assert any(isinstance(record, Failure) and record.code == "not_a_number" for record in log.records) is fails
        logs.append(caplog.text)
    assert logs[0].count("it computed NaN") == logs[1].count("it computed NaN") == 1
