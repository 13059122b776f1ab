"""Costs are spent at a bounded rate."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.admission.cell_rate import CellRate

STEPS = st.lists(st.tuples(st.floats(0, 2), st.floats(0.001, 3)), max_size=50)  # pauses and costs


@given(STEPS, st.floats(0.1, 100), st.floats(0, 5))
def test_spending_never_exceeds_rate_tolerance_and_the_last_cost(
    steps: list[tuple[float, float]], per_second: float, tolerance: float
):
    """A caller that waits as long as required stays within the rate over any time that begins with the first cost."""
    rate, now, spent = CellRate(per_second, tolerance), 1.0, 0.0
    for pause, cost in steps:
        now += pause + rate.wait(now + pause)
        rate.spend(now, cost)
        spent += cost
        assert spent - cost <= per_second * (now - 1.0) + tolerance + 1e-6


@given(STEPS)
def test_an_infinite_rate_never_waits(steps: list[tuple[float, float]]):
    """No spent cost makes a caller wait."""
    rate, now = CellRate(math.inf, 0.1), 0.0
    for pause, cost in steps:
        now += pause
        rate.spend(now, cost)
        assert rate.wait(now) == 0
