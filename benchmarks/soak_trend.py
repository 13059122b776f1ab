"""Slopes of the series that a soak samples, each with an interval and a verdict.

Samples are correlated, so the interval comes from a block bootstrap: residuals of the regression line are resampled in
blocks of successive points, slopes are recomputed, and the interval covers 95 % of them. Blocks count as the
independent observations: residuals are scaled by sqrt(k / (k - 2)) for k blocks, because a line has two parameters.
(For 50 points without a slope, correlated by 0.7 with their neighbours, 91 of 100 intervals include 0.)

Rule of the verdict: a slope is "within noise" if its interval includes 0, or if the change over an hour is below 1 % of
the level (the median of the points). Otherwise it is "growing" or "falling"; with fewer than `MIN_POINTS` points or
`MIN_BLOCKS` blocks it is "too few points".
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tally import percentile

Point = tuple[float, float]  # seconds, value
RESAMPLES = 1000
MIN_POINTS, MIN_BLOCKS = 8, 3
MAX_GROWTH_PER_HOUR = 0.01  # share of the level
HOUR = 3600.0


@dataclass(frozen=True)
class Trend:
    """Slope of a series of points, per hour, with its 95 % interval."""

    points: int
    is_known: bool  # whether there are enough points for a slope
    level: float
    per_hour: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Return the verdict, by the rule in the docstring of this module."""
        if not self.is_known:
            return "too few points"
        if self.low <= 0.0 <= self.high or abs(self.per_hour) < MAX_GROWTH_PER_HOUR * self.level:
            return "within noise"
        return "growing" if self.per_hour > 0 else "falling"

    def figures(self) -> dict[str, Any]:
        """Return the fields and the verdict."""
        return {
            "points": self.points,
            "level": self.level,
            "per_hour": self.per_hour,
            "interval": [self.low, self.high],
            "verdict": self.verdict,
        }


def trend(points: Sequence[Point], block: int) -> Trend:
    """Return the trend of one or more points. block: number of successive points that are resampled together."""
    times, values = [time for time, _ in points], [value for _, value in points]
    level = statistics.median(values)
    if len(points) < max(MIN_POINTS, MIN_BLOCKS * block):
        return Trend(len(points), False, level, 0.0, 0.0, 0.0)
    slope, intercept = statistics.linear_regression(times, values)
    fitted = [intercept + slope * time for time in times]
    blocks = len(points) / block
    scale = math.sqrt(blocks / (blocks - 2))
    residuals = [scale * (value - line) for value, line in zip(values, fitted, strict=True)]
    chance = random.Random(0)
    slopes = []
    for _ in range(RESAMPLES):
        drawn = _draw_blocks(residuals, block, chance)
        again = [line + residual for line, residual in zip(fitted, drawn, strict=True)]
        slopes.append(statistics.linear_regression(times, again)[0])
    low, high = percentile(slopes, 0.025), percentile(slopes, 0.975)
    return Trend(len(points), True, level, HOUR * slope, HOUR * low, HOUR * high)


def quiet_points(
    samples: Sequence[Point], floods: Sequence[tuple[float, float]], after: float, settle: float
) -> list[Point]:
    """Return the mean time and value of each quiet phase between two floods that has samples.

    floods: begin and end of each, in order. after: earliest time of a sample. settle: seconds after a flood
    in which samples are ignored.
    """
    begins = [begin for begin, _ in floods] + [float("inf")]
    ends = [float("-inf")] + [end + settle for _, end in floods]
    points = []
    for end, begin in zip(ends, begins, strict=True):
        phase = [(at, value) for at, value in samples if max(end, after) <= at < begin]
        if phase:
            points.append((statistics.fmean(at for at, _ in phase), statistics.fmean(value for _, value in phase)))
    return points


def _draw_blocks(values: Sequence[float], block: int, chance: random.Random) -> list[float]:
    """Return a resample of the same length, in blocks from random positions, wrapping around at the end."""
    drawn: list[float] = []
    while len(drawn) < len(values):
        start = chance.randrange(len(values))
        drawn += [values[(start + offset) % len(values)] for offset in range(block)]
    return drawn[: len(values)]
