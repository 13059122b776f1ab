"""Lives: whether another engine is started behind one that ended, and how soon."""

from __future__ import annotations

FRUITLESS = 8  # in a row, behind which no other engine is started
BACKOFF, LONGEST_BACKOFF = 1.0, 10.0  # seconds before the one that follows the first of them; doubled for each
LONG = 10.0  # seconds behind which an engine that had nothing to do did not die of coming up


class Lives:
    """Counts those in a row that ended before anything came of them."""

    def __init__(self) -> None:
        self._fruitless = 0
        self._had_culprit = False  # the life before

    def count(self, *, got_on: bool, was_at_work: bool, had_culprit: bool, seconds: float) -> None:
        """A life ended, `seconds` after it was ready. It counts for nothing where it is known of whom it died, unless
        it was so with the one before too: what dies of everything is broken; nor where it lived on with nothing to do.
        """
        if got_on:
            self._fruitless = 0
        elif (self._had_culprit or not had_culprit) and (was_at_work or seconds <= LONG):
            self._fruitless += 1
        self._had_culprit = had_culprit

    @property
    def are_enough(self) -> bool:
        """Nothing will come of another one."""
        return self._fruitless >= FRUITLESS

    @property
    def pause(self) -> float:
        """Seconds before the next one."""
        return min(LONGEST_BACKOFF, BACKOFF * 2 ** (self._fruitless - 1)) if self._fruitless else 0.0
