"""What steps cost, learnt from those that were made: the costs measured at start are a first guess, from three steps on
a machine that may have been busy just then.

A step of decodes alone takes a base and so much for each row: a least-squares line whose memory fades (recursive least
squares with a forgetting factor). Nothing but how much rides along with whom depends on it; no text does.
"""

from __future__ import annotations

from engine.scheduling.costs import Costs

FADE = 0.998  # of what is known, with each step: half of it is forgotten in 350
GUESS = 20.0  # steps that the costs measured at start count for
STRAY = 4.0  # times what was foreseen, beyond which a step was held up by something else
FEWEST = 0.25  # variance of the rows below which their price cannot be told


class Pace:
    """Seconds of a step by its rows."""

    def __init__(self, costs: Costs) -> None:
        self.row_seconds = costs.row_seconds
        self._base = costs.decode_seconds - costs.row_seconds
        # Sums over the steps seen, fading: their number, rows, seconds, rows squared, rows times seconds.
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        if costs.decode_seconds:
            for rows in (1, 8):
                self._add(rows, self.step_seconds(rows), GUESS / 2)

    def step_seconds(self, rows: int) -> float:
        """Of a step in which so many decode."""
        return max(0.0, self._base + rows * self.row_seconds)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` decodes and nothing else took that long."""
        foreseen = self.step_seconds(rows)
        if seconds <= 0.0 or rows < 1 or (foreseen and seconds > STRAY * foreseen):
            return
        self._n, self._x, self._y = FADE * self._n, FADE * self._x, FADE * self._y
        self._xx, self._xy = FADE * self._xx, FADE * self._xy
        self._add(rows, seconds, 1.0)
        mean = self._x / self._n
        variance = self._xx / self._n - mean * mean
        if variance >= FEWEST:
            self.row_seconds = max(0.0, (self._xy / self._n - mean * self._y / self._n) / variance)
        self._base = self._y / self._n - mean * self.row_seconds

    def _add(self, rows: int, seconds: float, weight: float) -> None:
        self._n += weight
        self._x += weight * rows
        self._y += weight * seconds
        self._xx += weight * rows * rows
        self._xy += weight * rows * seconds
