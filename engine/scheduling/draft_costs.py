"""DraftCosts: the time of drafts in a step, learnt from the latest steps without prompts.

A step takes a multiple of what the step-time model expects of its sequences, and a time for each draft: a line, fitted
by least squares with a short memory, since contexts grow and a machine's speed changes. A draft shares its context with
the row before, so its time is not that of a sequence. The less the number of drafts has varied, the closer the fit is
to a first guess; so drafts that cost too much once, or seemed to, are tried again.
"""

from __future__ import annotations

FORGETTING = 0.97  # factor for each step: half the weight is gone after 23
GUESS_DRAFTS_SQUARED = 4.0  # weight of the first guess, in squared deviations of drafts from their mean
FIRST_STEPS = 5.0  # as expected by the step-time model, before any was seen


class DraftCosts:
    """Factor of a step's expected seconds, and seconds of a draft."""

    def __init__(self) -> None:
        # Fading sums over steps of x, drafts by the expected seconds, and y, seconds by the expected ones.
        self._n, self._x, self._y, self._xx, self._xy = FIRST_STEPS, 0.0, FIRST_STEPS, 0.0, 0.0

    def observe(self, expected: float, drafts: int, seconds: float) -> None:
        """Learn from a step. expected: its seconds without drafts, by the step-time model."""
        x, y = drafts / expected, seconds / expected
        self._n, self._x, self._y = FORGETTING * self._n + 1.0, FORGETTING * self._x + x, FORGETTING * self._y + y
        self._xx, self._xy = FORGETTING * self._xx + x * x, FORGETTING * self._xy + x * y

    def fit(self, expected: float, guess: float) -> tuple[float, float]:
        """Return the seconds of a step without drafts, and those of a draft. guess: the latter, before it is learnt."""
        mean_x, mean_y = self._x / self._n, self._y / self._n
        weight = GUESS_DRAFTS_SQUARED / expected**2
        together, variation = self._xy - self._n * mean_x * mean_y, self._xx - self._n * mean_x * mean_x
        draft = max(0.0, (together + weight * guess) / (variation + weight))
        return max(0.0, mean_y - draft * mean_x) * expected, draft
