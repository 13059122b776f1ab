"""Times of a request for metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Times of a request, in monotonic seconds, for metrics."""

    received_at: float  # the whole request had arrived; client-visible latency counts from here
    submitted: float
    started: float | None = None
    first_token: float | None = None

    def move(self, moved: Callable[[float | None], float | None]) -> None:
        """Move all times."""
        self.received_at, self.submitted = moved(self.received_at) or 0.0, moved(self.submitted) or 0.0
        self.started, self.first_token = moved(self.started), moved(self.first_token)
