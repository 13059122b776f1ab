"""What people felt of late: times to the first token and between tokens, by class, over the last minute.

For the engine page, where somebody looks now; Prometheus has the buckets for everybody else.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from engine.types import ServiceClass

SLICE, SLICES = 5.0, 12  # seconds, and how many of them are kept
SHORTEST, STEP = 1e-4, 1.05  # seconds of the first bucket, and how much wider each next one is
BUCKETS = 1 + math.ceil(math.log(1e4 / SHORTEST, STEP))
BOUNDS = [SHORTEST * STEP**bucket for bucket in range(BUCKETS - 1)]  # upper ones, in seconds; the last bucket has none


class _Counts:
    """Of some seconds: by class, first tokens and gaps by bucket, requests that ended, and those of them in time."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.firsts = [[0] * BUCKETS for _ in ServiceClass]
        self.gaps = [[0] * BUCKETS for _ in ServiceClass]
        self.ended = [[0, 0] for _ in ServiceClass]

    def take_away(self, other: _Counts) -> None:
        """`other` is over."""
        for mine, others in ((self.firsts, other.firsts), (self.gaps, other.gaps), (self.ended, other.ended)):
            for counts, gone in zip(mine, others, strict=True):
                counts[:] = [count - less for count, less in zip(counts, gone, strict=True)]


class Recent:
    """Percentiles to five per cent, from counts in buckets: a token costs two additions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slices: deque[_Counts] = deque()
        self._all = _Counts()

    def first(self, service_class: ServiceClass, seconds: float) -> None:
        """From a request's arrival to its first token."""
        bucket = bisect_left(BOUNDS, seconds)
        self._now().firsts[service_class][bucket] += 1
        self._all.firsts[service_class][bucket] += 1

    def gaps(self, service_class: ServiceClass, seconds: Iterable[float]) -> None:
        """Between two tokens, as often as that was."""
        now, everything = self._now().gaps[service_class], self._all.gaps[service_class]
        for gap in seconds:
            bucket = bisect_left(BOUNDS, gap)
            now[bucket] += 1
            everything[bucket] += 1

    def ended(self, service_class: ServiceClass, is_good: bool) -> None:
        """Count a request that ended, within the objectives or not. A client that left before the first token is no
        failure of the server, and its request is not counted."""
        for counts in (self._now(), self._all):
            counts.ended[service_class][0] += 1
            counts.ended[service_class][1] += is_good

    def view(self) -> dict[str, dict[str, Any]]:
        """By class, in milliseconds; None where nobody came."""
        self._forget(int(self._clock() / SLICE))
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
        number = int(self._clock() / SLICE)
        if not self._slices or self._slices[-1].number != number:
            self._forget(number)
            self._slices.append(_Counts(number))
        return self._slices[-1]

    def _forget(self, number: int) -> None:
        while self._slices and self._slices[0].number <= number - SLICES:
            self._all.take_away(self._slices.popleft())


def _percentile(counts: list[int], share: float) -> float | None:
    """Upper bound, in milliseconds, of the bucket in which it lies."""
    total, seen = sum(counts), 0
    for bucket, count in enumerate(counts if total else ()):
        seen += count
        if seen >= share * total:
            return 1000 * SHORTEST * float(STEP) ** bucket
    return None
