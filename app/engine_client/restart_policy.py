"""Decide whether another engine is started after one ended, and after what delay."""

from __future__ import annotations

MAX_FAILED_STARTS = 8  # engines in a row without progress, after which no further engine is started
# delay after the first such engine, doubled for each further one, and its maximum
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 10.0
MIN_HEALTHY_SECONDS = 10.0  # of idle life after which a crash is not attributed to the start


class RestartPolicy:
    """Counter of consecutive engines that ended without progress."""

    def __init__(self) -> None:
        self._failures = 0
        self._had_culprit = False  # of the previous engine

    def record_end(self, *, made_progress: bool, had_work: bool, had_culprit: bool, seconds: float) -> None:
        """Count an engine that ended `seconds` after it was ready.

        A crash with a known culprit is not counted, unless the previous crash had one too: an engine that every request
        crashes is broken. Nor is the crash of an engine that was idle for long.
        """
        if made_progress:
            self._failures = 0
        elif (self._had_culprit or not had_culprit) and (had_work or seconds <= MIN_HEALTHY_SECONDS):
            self._failures += 1
        self._had_culprit = had_culprit

    @property
    def is_exhausted(self) -> bool:
        """Return whether a further engine would most likely fail too."""
        return self._failures >= MAX_FAILED_STARTS

    @property
    def backoff_seconds(self) -> float:
        """Return the delay before the next start, in seconds."""
        return min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2 ** (self._failures - 1)) if self._failures else 0.0
