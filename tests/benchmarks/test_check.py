"""The cost of steps is recovered from their work and duration."""

from __future__ import annotations

import random

import pytest

from benchmarks.scheduling.check import FITTED, fit
from engine.simulation import StepCost


def test_each_cost_is_recovered():
    """A step that lost its core is ignored."""
    cost = StepCost(step=1e-3, decode=2e-4, prompt=3e-5, chunk=4e-4, context=5e-7, swapped_page=1e-5, wake=1e-3)
    rng, steps = random.Random(1), []
    for _ in range(400):
        done = [1.0, *(float(rng.randint(0, maximum)) for maximum in (8, 200, 3, 3000, 20, 1))]
        took = sum(getattr(cost, name) * work for name, work in zip(FITTED, done, strict=True))
        steps.append([*done, took + (0.05 if rng.random() < 0.02 else 0.0)])
    found = fit(steps)
    for name in FITTED:
        assert getattr(found, name) == pytest.approx(getattr(cost, name), rel=0.05), name
