"""Latency percentiles and goodput of the last minute."""

from __future__ import annotations

import random

import pytest

from app.observe.rolling_latency import RollingLatency
from engine.types import ServiceClass

I, B = ServiceClass.INTERACTIVE, ServiceClass.BATCH  # noqa: E741


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_percentiles_are_accurate_to_five_per_cent():
    """They are compared with percentiles of the sorted values."""
    recent, rng = RollingLatency(Clock()), random.Random(1)
    values = [rng.lognormvariate(-4, 1) for _ in range(5000)]
    for start in range(0, len(values), 64):
        recent.add_gaps(I, values[start : start + 64])
    values.sort()
    median, last = recent.view()["interactive"]["itl_ms"]
    assert median == pytest.approx(1000 * values[2499], rel=0.06)
    assert last == pytest.approx(1000 * values[4949], rel=0.06)


def test_values_older_than_a_minute_are_dropped():
    """Newer values stay."""
    clock = Clock()
    recent = RollingLatency(clock)
    recent.add_first_token(B, 5.0)
    clock.now += 50
    recent.add_first_token(B, 0.01)
    assert recent.view()["batch"]["ttft_ms"][1] == pytest.approx(5000, rel=0.06)
    clock.now += 20
    assert recent.view()["batch"]["ttft_ms"][1] == pytest.approx(10, rel=0.06)
    clock.now += 100
    assert recent.view()["batch"]["ttft_ms"] == [None, None]


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-4, 1e4, 1e9])
def test_no_time_is_too_short_or_too_long(seconds: float):
    """The first and the last bucket hold them."""
    recent = RollingLatency(Clock())
    recent.add_first_token(I, seconds)
    assert recent.view()["interactive"]["ttft_ms"][0] is not None


def test_the_share_of_good_answers_counts_ended_requests():
    """The share is None if no request ended."""
    recent = RollingLatency(Clock())
    for good in (True, True, False, True):
        recent.add_end(I, good)
    assert recent.view()["interactive"] == {
        "ttft_ms": [None, None], "itl_ms": [None, None], "requests": 4, "good": 0.75,
    }  # fmt: skip
    assert recent.view()["batch"]["good"] is None
