"""Timeline of a request: no gaps, millisecond totals, visible only to its owner."""

from __future__ import annotations

import asyncio
import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.explain import timeline_lines
from app.engine_client.client import EngineClient
from app.generation.choice import OutputOptions
from app.generation.generation import Generation
from app.generation.request import AnswerHead
from app.protocols.answers import UsageReports
from app.protocols.chat import ChatEncoder
from app.streams.status import EngineMoveEvent, MoveReason
from app.streams.stream_log import StreamLog
from app.streams.timeline import DELIVERY, INTAKE, IntakeTimeline, RequestTimeline
from engine.cache_note import CacheNote
from engine.types import (
    Phase,
    PreemptionMode,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
    WaitReason,
)
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.routes.test_http import CHAT, http_with_keys  # noqa: F401  (a fixture)
from tests.app.text.test_text_model import byte_level
from tests.limits import HANG_SECONDS

PREEMPTED = StatusEvent(
    "r",
    0,
    Phase.PAUSED,
    cause=WaitReason.ORDER,
    preempted_by=ServiceClass.INTERACTIVE,
    mechanism=PreemptionMode.SWAP,
    victim_reason="it came last",
    monotonic_time=4.0,
)


def status(phase: Phase, at: float, cause: WaitReason | None = None, choice: int = 0) -> StatusEvent:
    return StatusEvent("r", choice, phase, cause=cause, monotonic_time=at)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 2.0), st.integers(0, 1), st.sampled_from(Phase), st.sampled_from([None, *WaitReason])),
        max_size=20,
    ),
    st.floats(0.0, 2.0),
    st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4),
)
def test_the_intervals_of_a_choice_follow_each_other_without_a_gap(steps, rest, intake):
    """Intervals are contiguous from arrival to end for any sequence of statuses in order of time."""
    arrived, complete, queued_at, turn, now = accumulate(intake, initial=10.0)
    intake_timeline = IntakeTimeline(arrived)
    intake_timeline.body_received(complete)
    intake_timeline.record_wait(queued_at, turn, WaitReason.TOKENIZATION)
    timeline = RequestTimeline(2, intake_timeline, now)
    for seconds, choice, phase, cause in steps:
        now += seconds
        timeline.add(status(phase, now, cause, choice))
    timeline.close(now + rest)
    for intervals in timeline.choices:
        assert intervals[0].began == 10.0
        assert all(a.ended == b.began for a, b in pairwise(intervals))
        assert all((a.phase, a.cause) != (b.phase, b.cause) for a, b in pairwise(intervals) if a.phase != INTAKE)
        assert all(interval.ended > interval.began for interval in intervals if interval.phase == INTAKE)
    assert max(intervals[-1].ended for intervals in timeline.choices) == now + rest


def test_a_preemption_records_the_beneficiary_and_the_reason():
    """The interval also contains the causes of the waits before and after it."""
    timeline = RequestTimeline(1, IntakeTimeline(1.0), 1.0)
    timeline.add(status(Phase.QUEUED, 1.5, WaitReason.SLOTS))
    timeline.add(status(Phase.PREFILL, 2.0))
    timeline.add(status(Phase.DECODE, 3.0))
    timeline.add(PREEMPTED)
    timeline.add(status(Phase.SWAPPING, 6.0))
    timeline.add(status(Phase.DECODE, 6.5))
    timeline.add(status(Phase.ENDED, 8.0))
    timeline.add(status(Phase.DECODE, 9.0))  # later than the end of the request, so it is dropped
    timeline.close(8.25)
    view = timeline.view(100.0)
    assert view["wall_ms"] == 7250.0
    assert view["totals_ms"] == {
        "queued": 1000.0, "prefill": 1000.0, "decode": 2500.0, "paused": 2000.0, "swapping": 500.0, DELIVERY: 250.0,
    }  # fmt: skip
    assert view["choices"][0]["intervals"][4] == {
        "phase": "paused", "began_ms": 3000.0, "ms": 2000.0, "cause": "order", "by": "interactive", "mechanism": "swap",
        "why": "it came last",
    }  # fmt: skip
    account = {"id": "r", "class": "batch", "state": "ended", "prompt_tokens": 3, "cached_tokens": 0, "cache": None}
    text = "\n".join(timeline_lines(account | {"completion_tokens": 9} | view))
    assert "paused" in text and "for a request of class interactive, pages kept in host memory: it came last" in text


async def test_the_intervals_of_a_thousand_requests_sum_to_their_wall_time():
    """This holds for all classes on four slots, against times measured outside of the server."""
    client = EngineClient(CONFIG, fake_engine)
    await client.start()
    await asyncio.wait_for(client.ready(), HANG_SECONDS)
    text, left, done = byte_level(), 1000, asyncio.Event()
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    generations = []

    def end(generation: Generation) -> None:
        nonlocal left
        ended[generation.request.id] = time.monotonic()
        left -= 1
        if not left:
            done.set()

    try:
        for i in range(1000):
            request = Request(
                id=f"r{i}",
                prompt=tuple(range(1, 2 + i % 7)),
                sampling=SamplingParams(max_tokens=1 + i % 9),
                service_class=ServiceClass(i % 3),
            )
            intake = IntakeTimeline(time.monotonic())
            began[request.id] = intake.arrived_at
            encoder = ChatEncoder(AnswerHead("m", "default", text, 1), UsageReports())
            log = StreamLog(request.id, "e", "")
            generation = Generation(request, text, OutputOptions(), log, encoder, client, intake)
            generation.connect(lambda generation: None, end, lambda gap, waited: None)
            generations.append(generation)
            client.submit(request, generation.handle_event)
            if i % 50 == 0:
                await asyncio.sleep(0.002)
        await asyncio.wait_for(done.wait(), HANG_SECONDS)
    finally:
        await client.stop()
    for generation in generations:
        name = generation.request.id
        (intervals,) = generation.timeline.choices
        total = sum(interval.ended - interval.began for interval in intervals)
        assert total == pytest.approx(generation.timeline.ended - generation.timeline.arrived, abs=1e-9)
        # The outer measurement can only be longer, by the time this test was suspended between two lines.
        assert began[name] == generation.timeline.arrived and generation.timeline.ended <= ended[name]
        assert {interval.phase for interval in intervals} >= {INTAKE, Phase.QUEUED, Phase.DECODE}


def test_an_intake_records_the_causes_of_its_waits():
    """Causes are the upload of the body and the tokenization of other requests; the rest is processing time."""
    intake = IntakeTimeline(10.0)
    intake.body_received(12.0)
    intake.record_wait(12.25, 12.255, WaitReason.TOKENIZATION)
    intake.record_wait(12.5, 14.0, WaitReason.TOKENIZATION)
    timeline = RequestTimeline(2, intake, 14.25)
    expected = [
        ("intake", 0.0, 2000.0, "body"),
        ("intake", 2000.0, 500.0, None),
        ("intake", 2500.0, 1500.0, "texts"),
        ("intake", 4000.0, 250.0, None),
    ]
    view = timeline.view(14.25)
    for choice in view["choices"]:
        found = [(i["phase"], i["began_ms"], i["ms"], i.get("cause")) for i in choice["intervals"]]
        assert found[:-1] == expected
    assert (view["wall_ms"], view["totals_ms"][INTAKE]) == (4250.0, 4250.0)
    account = {"id": "r", "class": "batch", "state": "queued", "prompt_tokens": 3, "cached_tokens": 0, "cache": None}
    text = "\n".join(timeline_lines(account | {"completion_tokens": 0} | view))
    assert "request body incomplete" in text
    assert "long texts of other requests tokenized first" in text


def test_upload_time_does_not_count_for_time_to_first_token():
    """Tokenization counts, since the client waits for it."""
    waited = []
    intake, now = IntakeTimeline(time.monotonic() - 100.0), time.monotonic()
    intake.body_received(now - 10.0)
    generation = Generation(
        Request(id="r", prompt=(1,), sampling=SamplingParams(max_tokens=50)),
        byte_level(),
        OutputOptions(),
        StreamLog("r", "e", ""),
        None,
        EngineClient(CONFIG, fake_engine),
        intake,
    )
    generation.connect(lambda _: None, lambda _: None, lambda gap, seconds: waited.append(seconds))
    generation.handle_event(TokenEvent("r", 0, 1))
    assert 10.0 <= waited[0] < 100.0


@pytest.mark.parametrize(("late", "expected"), [(0.01, [None]), (3.0, [None, "reader"])])
def test_delivery_to_a_slow_reader_is_attributed_to_the_reader(late: float, expected):
    """The request ends when the answer is delivered; a short delay counts as delivery without a cause."""
    timeline = RequestTimeline(1, IntakeTimeline(10.0), 10.0)
    timeline.add(StatusEvent("r", 0, Phase.DECODE, monotonic_time=11.0))
    timeline.add(StatusEvent("r", 0, Phase.ENDED, monotonic_time=12.0))
    timeline.close(12.5, is_read=True)
    assert timeline.view(13.0)["wall_ms"] == 3000.0, "the clock runs while the answer is read"
    timeline.record_delivery(12.5 + late)
    timeline.record_delivery(99.0)
    (intervals,) = timeline.choices
    assert [i.cause for i in intervals if i.phase == "delivery"] == expected
    assert sum(i.ended - i.began for i in intervals) == pytest.approx(2.5 + late)
    assert timeline.ended == 12.5 + late


def test_only_the_owner_sees_a_request_s_timeline(http_with_keys):  # noqa: F811
    """It is found by the answer's id or the stream's, and for other tenants it does not exist."""
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    content = "a prompt that no other test has put into the prefix cache"
    ask = {"messages": [{"role": "user", "content": content}], "max_tokens": 3, "n": 2}
    answer = http_with_keys.post(CHAT, json=ask, headers=alice)
    assert {"intake", "queued", "prefill", "decode"} <= answer.json()["usage"]["time_ms"].keys()
    for name in (answer.json()["id"], answer.headers["x-request-id"]):
        account = http_with_keys.get(f"/v1/requests/{name}", headers=alice).json()
        assert (account["state"], account["class"], account["completion_tokens"]) == ("ended", "standard", 6)
        assert [choice["index"] for choice in account["choices"]] == [0, 1]
        for choice in account["choices"]:
            spent = sum(interval["ms"] for interval in choice["intervals"])
            assert spent <= account["wall_ms"] + 0.05
        assert http_with_keys.get(f"/v1/requests/{name}", headers=bob).status_code == 404
        assert http_with_keys.get(f"/v1/requests/{name}").status_code == 401
    missing = http_with_keys.get("/v1/requests/nonsense", headers=alice)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


def test_a_further_choice_waits_only_for_the_prompt(http_with_keys):  # noqa: F811
    """On an idle server the first choice computes the prompt for all choices."""
    alice = {"Authorization": "Bearer alice"}
    ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "n": 3}
    answer = http_with_keys.post(CHAT, json=ask, headers=alice).json()
    choices = http_with_keys.get(f"/v1/requests/{answer['id']}", headers=alice).json()["choices"]
    causes = [{interval.get("cause") for interval in choice["intervals"]} for choice in choices]
    assert "prompt" not in causes[0]
    assert all("prompt" in some and "order" not in some for some in causes[1:])


def loss(
    at: float,
    lost: int,
    next_engine: int | None = None,
    *,
    was_computing: bool = True,
    reason: MoveReason = MoveReason.DIED,
) -> EngineMoveEvent:
    cause = WaitReason.RESTART
    return EngineMoveEvent(
        "r", 0, Phase.QUEUED, cause=cause, monotonic_time=at,
        left_engine=lost, reason=reason, was_computing=was_computing, next_engine=next_engine,
    )  # fmt: skip


def test_the_loss_of_one_of_several_engines_is_explained():
    """The interval has both engines, even if the request waited for other ones in between or lost another engine."""
    timeline = RequestTimeline(1, IntakeTimeline(0.0), 1.0)
    events = [
        status(Phase.DECODE, 2.0), loss(3.0, 2), status(Phase.QUEUED, 4.0, WaitReason.ORDER), loss(3.0, 2, 1),
        status(Phase.PREFILL, 5.0), loss(6.0, 1, was_computing=False, reason=MoveReason.DRAINED),
    ]  # fmt: skip
    for event in events:
        timeline.add(event)
    view = timeline.view(7.0)
    intervals = view["choices"][0]["intervals"]
    losses = [
        tuple(each[key] for key in ("left_engine", "was_computing", "move_reason", "next_engine"))
        for each in intervals
        if "left_engine" in each
    ]
    assert losses == [(2, True, "died", 1), (1, False, "drained", None)]
    assert [each["phase"] for each in intervals] == [
        "intake",
        "queued",
        "decode",
        "queued",
        "queued",
        "prefill",
        "queued",
    ]
    account = {"id": "r", "class": "standard", "state": "queued", "prompt_tokens": 1, "cached_tokens": 0, "cache": None}
    text = "\n".join(timeline_lines(account | {"completion_tokens": 0, **view}))
    assert "engine 2 died while computing it; it went on in engine 1\n" in text
    assert text.endswith("engine 1 was drained while it waited there")


def test_the_note_about_the_cache_is_that_of_the_first_engine():
    """Another engine, which goes on with the answer, has none of its prompt."""
    timeline = RequestTimeline(1, IntakeTimeline(0.0), 0.0)
    for kept_seconds in (1.0, 2.0):
        note = CacheNote("r", kept_seconds)
        timeline.add(StatusEvent("r", 0, Phase.PREFILL, monotonic_time=kept_seconds, cache_note=note))
        timeline.add(StatusEvent("r", 0, Phase.QUEUED, cause=WaitReason.RESTART, monotonic_time=kept_seconds))
    assert timeline.cache_note == CacheNote("r", 1.0)
