"""The soak test: its plan, its arithmetic, the answers that it compares, and a short complete run."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError

from benchmarks import soak
from benchmarks.hostile_clients import CASES, chunk
from benchmarks.soak_clients import Record
from benchmarks.soak_plan import QUIET_SECONDS, RESTART_SECONDS, Flood, Kill, Plan, make_plan
from benchmarks.soak_requests import Answer, BadAnswer, answer_of, events_of, realtime_asks, sse_asks
from benchmarks.soak_trend import MIN_BLOCKS, MIN_POINTS, Trend, quiet_points, trend

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SUMMARY: dict[str, Any] = {"failures": {}, "kills": 3, "restarts": 3.0, "recovered": 3, "left_over": {}}
DONE = "[DONE]"


def piece(text: str, finish: str | None = None, index: int = 0) -> str:
    """Return the data of an event of a chat stream."""
    return json.dumps({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]})


@given(st.integers(0, 2**32), st.floats(1, 20_000))
def test_a_plan_is_repeatable_and_leaves_time_to_recover(seed, seconds):
    """One seed gives one plan; kills are a restart apart from each other and the end, and floods a quiet phase."""
    plan = make_plan(seconds, seed)
    assert plan == make_plan(seconds, seed)
    kills = [kill.at for kill in plan.kills] + [seconds]
    assert all(after - before >= RESTART_SECONDS for before, after in pairwise(kills))
    ends = [flood.at + flood.seconds for flood in plan.floods]
    begins = [flood.at for flood in plan.floods[1:]] + [seconds] * bool(ends)
    assert all(begin - end >= QUIET_SECONDS for end, begin in zip(ends, begins, strict=True))


def test_a_rotation_has_every_hostile_client_once():
    """Each kind of flood occurs once before any repeats; seeds differ in the order."""
    orders = [[flood.case for flood in make_plan(3600.0, seed).floods] for seed in (1, 2)]
    for order in orders:
        assert sorted(order[: len(CASES)]) == sorted(order[len(CASES) : 2 * len(CASES)]) == sorted(CASES)
    assert orders[0] != orders[1]


def test_a_long_plan_has_both_signals():
    """SIGSTOP is rare, SIGKILL more frequent."""
    signals = [kill.signal for kill in make_plan(36_000.0, 1).kills]
    assert 0 < signals.count(signal.SIGSTOP) < signals.count(signal.SIGKILL)


def noise(number: int, seed: int) -> list[float]:
    """Return values that are correlated with their neighbours, like samples of memory."""
    rng = random.Random(seed)
    values = [0.0]
    while len(values) < number:
        values.append(0.7 * values[-1] + rng.gauss(0, 1))
    return values


def test_growth_is_found_in_noise():
    """A leak of 60 MB an hour is distinguished from correlated noise, and the interval contains it."""
    found = trend([(30.0 * n, 100 + 0.5 * n + value) for n, value in enumerate(noise(50, 1))], 10)
    assert found.verdict == "growing" and found.low < 60 < found.high
    assert abs(found.per_hour - 60) < 15


def test_noise_alone_is_within_noise():
    """At least nine in ten series without a trend have an interval that contains 0."""
    series = [trend([(30.0 * n, 10 + value) for n, value in enumerate(noise(50, seed))], 10) for seed in range(30)]
    assert sum(one.low <= 0 <= one.high for one in series) >= 27


def test_a_constant_is_within_noise():
    """Descriptors that never change have the slope 0."""
    found = trend([(30.0 * n, 17.0) for n in range(30)], 10)
    assert (found.verdict, found.level, found.per_hour) == ("within noise", 17.0, 0.0)


@pytest.mark.parametrize(
    ("per_hour", "low", "high", "is_known", "verdict"),
    [
        (0.9, 0.5, 1.2, True, "within noise"),  # under 1 % of the level
        (1.1, 0.5, 1.5, True, "growing"),
        (-1.1, -1.5, -0.5, True, "falling"),
        (5.0, -1.0, 11.0, True, "within noise"),  # 0 is in the interval
        (5.0, 4.0, 6.0, False, "too few points"),
    ],
)
def test_verdicts_follow_the_rule(per_hour, low, high, is_known, verdict):
    """The interval and 1 % of the level an hour decide."""
    assert Trend(20, is_known, 100.0, per_hour, low, high).verdict == verdict


def test_few_points_have_no_slope():
    """Fewer points or blocks than a slope needs give their level only."""
    for number, block in ((MIN_POINTS - 1, 1), (MIN_BLOCKS * 10 - 1, 10)):
        points = [(float(n), float(n)) for n in range(number)]
        assert trend(points, block) == Trend(number, False, (number - 1) / 2, 0.0, 0.0, 0.0)
        assert trend([*points, (float(number), float(number))], block).verdict == "growing"


def test_quiet_points_are_means_between_floods():
    """Samples in a flood, soon after one and before the end of the warm-up do not count."""
    samples = [(float(at), float(at)) for at in range(0, 60, 5)]
    found = quiet_points(samples, [(10.0, 20.0), (40.0, 50.0)], after=6.0, settle=3.0)
    assert found == [(30.0, 30.0), (55.0, 55.0)]


def test_the_warm_up_lasts_until_each_kind_of_hostile_client_came_once():
    """Later ones of a kind do not prolong it."""
    rows = [("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", 4.0), ("b", 5.0)]
    assert soak.warm_up_end([{"case": case, "ended": ended} for case, ended in rows]) == 4.0


def test_each_engine_process_is_one_point():
    """Each engine process counts by its sample nearest to the same age; one that ended sooner does not count."""
    ages = [(1, 40.0), (1, 44.0), (1, 47.0), (2, 30.0), (3, 49.0)]
    samples = [
        {"at": float(n), "engine": {"pid": pid, "age_s": age, "rss_mb": age}} for n, (pid, age) in enumerate(ages)
    ]
    assert soak.life_points([*samples, {"at": 9.0, "engine": None}], "rss_mb") == [(1.0, 44.0), (4.0, 49.0)]


@pytest.mark.parametrize(
    "change",
    [{"failures": {"sse: changed": 1}}, {"restarts": 4.0}, {"recovered": 2}, {"left_over": {"pages held": 2.0}}],
)
def test_each_fault_fails_the_run(change):
    """A failed bystander, a restart without a kill, an engine that does not come back and a leak are one fault each."""
    assert not soak.faults(SUMMARY)
    assert len(soak.faults(SUMMARY | change)) == 1


def test_metrics_are_summed_over_their_series():
    """Labels select series, and names with a common prefix do not match."""
    metrics = 'a:b{state="held",x="1"} 2.0\na:b{state="free",x="1"} 4.0\na:b{x="1",state="held"} 3.0\na:bc 9.0\nd 5.0\n'
    held = soak.LEFT_OVER["pages held"].replace("carousel:kv_pages", "a:b")
    assert (soak.total(metrics, "a:b"), soak.total(metrics, held), soak.total(metrics, "d")) == (9.0, 5.0, 5.0)


def test_events_are_read_from_any_beginning_of_a_response():
    """From a response that is cut at any byte exactly the complete events are read."""
    blocks = [b"id: s.0.%d\r\ndata: %d\r\n\r\n" % (number, number) for number in range(3)]
    raw = HEAD + chunk(b": ping\r\n\r\n") + b"".join(map(chunk, blocks)) + b"0\r\n\r\n"
    whole = [("s.0.0", "0"), ("s.0.1", "1"), ("s.0.2", "2")]
    found = [events_of(raw[:size]) for size in range(len(HEAD), len(raw) + 1)]
    assert found[-1] == whole and all(events == whole[: len(events)] for events in found)
    assert [len(events) for events in found] == sorted(len(events) for events in found)


def test_an_answer_has_the_text_of_each_choice():
    """Interleaved deltas of two choices are combined."""
    data = [piece("a"), piece("x", index=1), piece("b", "stop"), piece("", "length", 1), '{"choices":[]}', DONE]
    assert answer_of(data) == Answer({0: "ab", 1: "x"}, {0: "stop", 1: "length"})


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ([piece("a", "stop")], "no [DONE]"),
        ([piece("a"), '{"error":{}}'], "error event"),
        ([piece("a", "stop"), DONE, DONE], "data after [DONE]"),
    ],
)
def test_a_bad_answer_is_named(data, kind):
    """An answer without its end, with an error or with data after its end is invalid."""
    with pytest.raises(BadAnswer) as found:
        answer_of(data)
    assert found.value.kind == kind


def test_requests_are_many_and_reproducible():
    """Two processes send the same requests, and every request is different."""
    for asks in (sse_asks, realtime_asks):
        bodies = [json.dumps(ask.body) for ask in asks(40)]
        assert bodies == [json.dumps(ask.body) for ask in asks(40)] and len(set(bodies)) == 40


async def judged(answering: Awaitable[Answer]) -> Record:
    record = Record()
    await record.judge("sse", sse_asks(1)[0], answering, Answer({0: "Once upon"}, {0: "stop"}))
    return record


async def answer(text: str, finish: str = "stop") -> Answer:
    return Answer({0: text}, {0: finish})


async def raising(error: Exception) -> Answer:
    raise error


async def test_an_answer_is_judged_by_every_character():
    """The expected answer is no failure; another text or finish reason is one, with the first difference."""
    same = await judged(answer("Once upon"))
    assert (same.answers, same.failures) == ({"sse": 1}, {})
    for other, detail in ((answer("Once Upon"), "from character 5 of 9"), (answer("Once upon", "length"), "'length'")):
        record = await judged(other)
        assert record.failures == {"sse: changed": 1}
        assert detail in str(record.examples[0]["detail"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadAnswer("no [DONE]"), "no [DONE]"),
        (TimeoutError(), "no end in 180 s"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ConnectionClosedError(None, None), "ConnectionClosedError"),
    ],
)
async def test_a_missing_answer_is_a_failure(error, kind):
    """Each kind of failure is counted under its name."""
    assert (await judged(raising(error))).failures == {f"sse: {kind}": 1}


@pytest.mark.slow
def test_a_short_run_has_no_failures():
    """A kill and a flood at once change no bystander's answer and leave no resources allocated."""
    plan = Plan(5.0, (Kill(1.0, signal.SIGKILL),), (Flood(0.5, "pings", 2.0),))
    found = soak.soak(plan, seed=1, requests=4)
    summary = soak.summarise(found)
    assert not soak.faults(summary), found["clients"]["examples"]
    assert summary["kills"] == summary["floods"] == 1
    assert all(summary["answers"][client] for client in ("sse", "realtime"))
