"""DraftCosts: the time of drafts, learnt from steps."""

from __future__ import annotations

import random

import pytest

from engine.scheduling.costs import Costs
from engine.scheduling.draft_costs import DraftCosts
from engine.scheduling.step_time_model import StepTimeModel

EXPECTED, GUESS = 0.006, 0.001
STEPS = 60


def observed(steps: list[tuple[int, float]]) -> DraftCosts:
    costs = DraftCosts()
    for drafts, seconds in steps:
        costs.observe(EXPECTED, drafts, seconds)
    return costs


def test_nothing_seen_leaves_what_was_expected():
    assert DraftCosts().fit(EXPECTED, GUESS) == pytest.approx((EXPECTED, GUESS))


@pytest.mark.parametrize(("base", "draft"), [(0.006, 0.0003), (0.012, 0.002), (0.004, 0.0)])
def test_varying_drafts_tell_their_time_from_that_of_the_step(base: float, draft: float):
    """With noise of a tenth, also where the step takes longer than expected: its context has grown."""
    rng = random.Random(0)
    steps = [(d := rng.randrange(8), (base + d * draft) * rng.uniform(0.9, 1.1)) for _ in range(STEPS)]
    found_base, found_draft = observed(steps).fit(EXPECTED, GUESS)
    assert found_base == pytest.approx(base, rel=0.15)
    assert found_draft == pytest.approx(draft, abs=0.15 * base)


def test_a_steady_number_of_drafts_explains_steps_of_that_number():
    """Which part is theirs cannot be known; the guess stands."""
    base, draft = observed([(2, 0.010)] * 4 * STEPS).fit(EXPECTED, GUESS)
    assert draft == pytest.approx(GUESS, rel=0.1) and base + 2 * draft == pytest.approx(0.010, rel=0.1)


def test_drafts_that_seemed_dear_are_tried_again():
    """Without drafts, the guess returns."""
    steps = [(0, 0.006), (7, 0.200)] * 20
    assert observed(steps).fit(EXPECTED, GUESS)[1] > 0.01
    assert observed([*steps, *[(0, 0.006)] * 400]).fit(EXPECTED, GUESS)[1] == pytest.approx(GUESS, rel=0.2)


def test_steps_with_drafts_teach_the_time_of_those_without():
    """A sequence that always has drafts keeps the estimate of a plain step."""
    model = StepTimeModel(Costs(1e4, 1e9, decode_seconds=0.006, row_seconds=0.001))
    rng = random.Random(1)
    for _ in range(400):
        drafts = rng.randrange(1, 8)
        model.observe(1, 0.0, 0.012 + drafts * 0.002, drafts)
    assert model.with_drafts(1) == pytest.approx((0.012, 0.002), rel=0.2)
    assert model.step_seconds(1) == pytest.approx(0.012, rel=0.25)


def test_rows_that_were_measured_as_dear_leave_drafts_a_chance():
    """A draft is guessed to take less than half of a step."""
    model = StepTimeModel(Costs(1e4, 1e9, decode_seconds=0.006, row_seconds=0.006))
    seconds, draft = model.with_drafts(1)
    assert draft < 0.5 * seconds
