"""Client-visible latency of the last minute: times to the first token and between tokens, by class.

Shown on the engine page, which needs current values; Prometheus has histograms over longer times.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from engine.types import ServiceClass

INTERVAL_SECONDS, INTERVALS = 5.0, 12  # seconds of an interval, and number of intervals kept
MIN_SECONDS, BUCKET_RATIO = 1e-4, 1.05  # upper bound of the first bucket in seconds, and ratio of consecutive bounds
BUCKETS = 1 + math.ceil(math.log(1e4 / MIN_SECONDS, BUCKET_RATIO))
# upper bounds in seconds; the last bucket has none
BOUNDS = [MIN_SECONDS * BUCKET_RATIO**bucket for bucket in range(BUCKETS - 1)]


class _Counts:
    """Counts of an interval, by class: first tokens and gaps by bucket, ended requests, and those within objectives."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.firsts = [[0] * BUCKETS for _ in ServiceClass]
        self.gaps = [[0] * BUCKETS for _ in ServiceClass]
        self.ended = [[0, 0] for _ in ServiceClass]

    def subtract(self, other: _Counts) -> None:
        """Subtract the counts of an expired interval."""
        for mine, others in ((self.firsts, other.firsts), (self.gaps, other.gaps), (self.ended, other.ended)):
            for counts, gone in zip(mine, others, strict=True):
                counts[:] = [count - less for count, less in zip(counts, gone, strict=True)]


class RollingLatency:
    """Percentiles with a resolution of five per cent, from bucket counts: a token costs two additions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._intervals: deque[_Counts] = deque()
        self._all = _Counts()

    def add_first_token(self, service_class: ServiceClass, seconds: float) -> None:
        """Count a time to the first token."""
        bucket = bisect_left(BOUNDS, seconds)
        self._now().firsts[service_class][bucket] += 1
        self._all.firsts[service_class][bucket] += 1

    def add_gaps(self, service_class: ServiceClass, seconds: Iterable[float]) -> None:
        """Count gaps between tokens."""
        now, everything = self._now().gaps[service_class], self._all.gaps[service_class]
        for gap in seconds:
            bucket = bisect_left(BOUNDS, gap)
            now[bucket] += 1
            everything[bucket] += 1

    def add_end(self, service_class: ServiceClass, is_good: bool) -> None:
        """Count a request that ended within the objectives or not. A request whose client left before the first token
        is not counted, because that is no failure of the server.
        """
        for counts in (self._now(), self._all):
            counts.ended[service_class][0] += 1
            counts.ended[service_class][1] += is_good

    def view(self) -> dict[str, dict[str, Any]]:
        """Return the latency by class, in milliseconds; None for a class without requests."""
        self._forget(int(self._clock() / INTERVAL_SECONDS))
        views: dict[str, dict[str, Any]] = {}
        for c in ServiceClass:
            ended, good = self._all.ended[c]
            views[c.label] = {
                "ttft_ms": [_percentile(self._all.firsts[c], share) for share in (0.5, 0.99)],
                "itl_ms": [_percentile(self._all.gaps[c], share) for share in (0.5, 0.99)],
                "requests": ended,
                "good": good / ended if ended else None,
            }
        return views

    def _now(self) -> _Counts:
        number = int(self._clock() / INTERVAL_SECONDS)
        if not self._intervals or self._intervals[-1].number != number:
            self._forget(number)
            self._intervals.append(_Counts(number))
        return self._intervals[-1]

    def _forget(self, number: int) -> None:
        while self._intervals and self._intervals[0].number <= number - INTERVALS:
            self._all.subtract(self._intervals.popleft())


def _percentile(counts: list[int], share: float) -> float | None:
    """Return the upper bound, in milliseconds, of the bucket that contains the percentile."""
    total, seen = sum(counts), 0
    for bucket, count in enumerate(counts if total else ()):
        seen += count
        if seen >= share * total:
            return 1000 * MIN_SECONDS * float(BUCKET_RATIO) ** bucket
    return None
