"""Marks of a simulated fleet, and their table."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PEOPLE_RATIO = 1.3  # people's p99 first token under load over that without
MAX_SHARE_ERROR = 0.05  # of a tenant's service, relative to its max-min fair share
MAX_POISON_DEATHS = 3
MAX_DECISION_MICROSECONDS = 50  # at 64 candidates
MAX_HERD_RATIO = 2.0  # batch p50 first token with loads 1 s old over that with fresh loads
MAX_LIVE_DIFFERENCE = 0.1


@dataclass(frozen=True, slots=True)
class Mark:
    """Measured figure and the most that it may be."""

    name: str
    measured: float
    limit: float

    @property
    def is_met(self) -> bool:
        """Return whether the figure is within its limit."""
        return self.measured <= self.limit


def print_marks(marks: list[Mark]) -> None:
    """Print a table."""
    width = max(len(mark.name) for mark in marks)
    print(f"{'':{width}}  measured      mark")
    for mark in marks:
        print(f"{mark.name:{width}}  {mark.measured:8.3g}  {mark.limit:8g}  {'met' if mark.is_met else 'NOT MET'}")
