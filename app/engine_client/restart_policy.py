"""Lives: decide whether another engine is started after one ended, and after what delay."""

from __future__ import annotations

FRUITLESS = 8  # engines in a row without progress, after which no further engine is started
# delay after the first such engine, doubled for each further one, and its maximum
BACKOFF, MAX_BACKOFF_SECONDS = 1.0, 10.0
LONG = 10.0  # seconds of idle life after which a crash is not attributed to the start


class Lives:
    """Counter of consecutive engines that ended without progress."""

    def __init__(self) -> None:
        self._failures = 0
        self._had_culprit = False  # of the previous engine

    def count(self, *, got_on: bool, was_at_work: bool, had_culprit: bool, seconds: float) -> None:
        """Count an engine that ended `seconds` after it was ready.

        A crash with a known culprit is not counted, unless the previous crash had one too: an engine that every request
        crashes is broken. Nor is the crash of an engine that was idle for long.
        """
        if got_on:
            self._failures = 0
        elif (self._had_culprit or not had_culprit) and (was_at_work or seconds <= LONG):
            self._failures += 1
        self._had_culprit = had_culprit

    @property
    def are_enough(self) -> bool:
        """Return whether a further engine would most likely fail too."""
        return self._failures >= FRUITLESS

    @property
    def pause(self) -> float:
        """Return the delay before the next start, in seconds."""
        return min(MAX_BACKOFF_SECONDS, BACKOFF * 2 ** (self._failures - 1)) if self._failures else 0.0
