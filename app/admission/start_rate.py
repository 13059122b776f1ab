"""StartRate: rate at which waiting requests start, from which the wait of another one is estimated."""

from __future__ import annotations

import math

DECAY_SECONDS = 20.0  # time constant of the exponential decay, in time with waiting requests
# Time with waiting requests after which slots count as taken. A request waits for the next step even if slots are free,
# and such starts would count as a rate that no busy server has.
SETTLE_SECONDS = 1.0


class StartRate:
    """Starts of one class per second in which requests of it wait.

    Idle time does not count, so the rate of an earlier busy time is known when the next one begins.
    """

    def __init__(self) -> None:
        self._starts = 0.0
        self._seconds = 0.0
        self._counted_to = math.inf  # time up to which the current busy time was counted; infinity: none waits

    def begin_waiting(self, now: float) -> None:
        """Begin a busy time, as the first request starts to wait."""
        self._counted_to = now + SETTLE_SECONDS

    def end_waiting(self) -> None:
        """End a busy time, as no request waits any longer."""
        self._counted_to = math.inf

    def count_start(self, now: float) -> None:
        """Count a request that stops waiting."""
        if now > self._counted_to:
            self._advance(now)
            self._starts += 1

    def per_second(self, now: float, expected: float) -> float:
        """Return the rate; infinity before a busy time was counted.

        expected: starts that are about to happen. At the beginning, and between two waves of requests of the same
        length, nothing has started for a while although the server is as fast as ever.
        """
        self._advance(now)
        return (self._starts + expected) / self._seconds if self._seconds > 0 else math.inf

    def _advance(self, now: float) -> None:
        if now > self._counted_to:
            passed = now - self._counted_to
            factor = math.exp(-passed / DECAY_SECONDS)
            self._starts *= factor
            self._seconds = self._seconds * factor + DECAY_SECONDS * (1 - factor)
            self._counted_to = now
