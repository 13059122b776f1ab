"""CellRate: the rate at which costs may be spent."""

from __future__ import annotations


class CellRate:
    """Generic cell rate algorithm (ITU-T I.371) for costs of any unit, such as events or seconds of CPU time.

    A cost may be known only after it was spent: it is never refused, it makes the next one wait.
    """

    def __init__(self, per_second: float, tolerance: float) -> None:
        """per_second: cost that flows back, may be infinite. tolerance: cost ahead of that rate at which more may
        still be spent."""
        self._per_second = per_second
        self._tolerance = tolerance / per_second  # seconds
        self._expected_at = 0.0  # when all that was spent has flowed back

    def wait(self, now: float) -> float:
        """Return the seconds until more may be spent."""
        return max(0.0, self._expected_at - self._tolerance - now)

    def spend(self, now: float, cost: float = 1.0) -> None:
        """Count a cost."""
        self._expected_at = max(self._expected_at, now) + cost / self._per_second
