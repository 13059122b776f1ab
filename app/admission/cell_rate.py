"""CellRate: a limit on the rate at which costs are spent."""

from __future__ import annotations


class CellRate:
    """Generic cell rate algorithm (ITU-T I.371) for costs of any unit, such as events or seconds of CPU time.

    A cost may be known only after it was spent: it is never refused, but it delays the next one.
    """

    def __init__(self, per_second: float, tolerance: float) -> None:
        """per_second: cost that is replenished per second; may be infinite. tolerance: cost that may be spent ahead of
        that rate.
        """
        self._per_second = per_second
        self._tolerance = tolerance / per_second  # seconds
        self._expected_at = 0.0  # when all spent cost is replenished

    def wait(self, now: float) -> float:
        """Return the seconds until more may be spent."""
        return max(0.0, self._expected_at - self._tolerance - now)

    def spend(self, now: float, cost: float = 1.0) -> None:
        """Count a cost."""
        self._expected_at = max(self._expected_at, now) + cost / self._per_second
