"""Latencies of requests are counted as they are served."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from benchmarks.tally import Tally, percentile
from engine.types import FinishReason, Request, SamplingParams, ServiceClass, TokenEvent


def make_request(name: str, **more) -> Request:
    return Request(id=name, prompt=(1,), sampling=SamplingParams(max_tokens=9), **more)


def feed(tally: Tally, moments: dict[str, list[float]]) -> None:
    """Feed each request's tokens at its moments, in order of time."""
    for at, name in sorted((at, name) for name, times in moments.items() for at in times):
        finish = FinishReason.LENGTH if at == moments[name][-1] else None
        tally.take([TokenEvent(name, 0, 7, finish)], at)


def test_first_tokens_and_gaps_are_those_of_the_moments_given():
    """Results equal those of a naive computation."""
    rng, tally, arrival_times, moments = random.Random(1), Tally(), {}, {}
    for number in range(50):
        name = f"r{number}"
        arrival_times[name] = rng.uniform(0, 10)
        tally.arrive(arrival_times[name], make_request(name))
        at = arrival_times[name]
        moments[name] = [at := at + rng.uniform(0.001, 0.3) for _ in range(rng.randint(1, 9))]
    feed(tally, moments)
    gaps = [after - before for times in moments.values() for before, after in pairwise(times)]
    firsts = [times[0] - arrival_times[name] for name, times in moments.items()]
    found = tally.all().figures()
    assert found["requests"] == 50
    assert found["ttft_p99"] == pytest.approx(1000 * percentile(firsts, 0.99))
    assert found["itl_p50"] == pytest.approx(1000 * percentile(gaps, 0.5), abs=2.0)
    assert found["itl_max"] == pytest.approx(1000 * max(gaps))
    assert tally.tokens == sum(map(len, moments.values()))


def test_an_answer_is_good_when_both_objectives_are_met():
    """The objectives are a second to the first token, and a tenth between tokens on average."""
    tally = Tally()
    moments = {"good": [0.9, 0.95, 1.08], "late": [1.1, 1.2], "slow": [0.5, 0.8, 0.9], "alone": [0.2]}
    for name in moments:
        tally.arrive(0.0, make_request(name))
    feed(tally, moments)
    assert tally.all().figures()["goodput"] == 0.5


def test_tenants_are_reported_separately_where_a_class_has_several():
    """Their class is reported as a whole too."""
    tally = Tally()
    for name, tenant in (("a", "calm"), ("b", "flood"), ("c", "flood")):
        tally.arrive(0.0, make_request(name, tenant=tenant))
    tally.arrive(0.0, make_request("d", tenant="calm", service_class=ServiceClass.INTERACTIVE))
    feed(tally, {"a": [0.1], "b": [0.2], "c": [0.4], "d": [0.3]})
    found = tally.figures(2.0)
    counts = {key: value["requests"] for key, value in found.items() if isinstance(value, dict)}
    assert counts == {"interactive": 1, "standard, calm": 1, "standard, flood": 2, "standard": 3}
    assert found["tokens_per_second"] == 2.0
