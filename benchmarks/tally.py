"""Latencies of requests by class and tenant: time to first token, gaps between tokens, and goodput.

Suitable for tens of millions of tokens: gaps are counted in bins of a tenth of a millisecond, not stored.
"""

from __future__ import annotations

import statistics
from typing import Any

from engine.types import Event, Request, ServiceClass, TokenEvent

BINS_PER_SECOND = 1e4  # a bin is a tenth of a millisecond
GOOD_TTFT, GOOD_ITL = 1.0, 0.1  # seconds, the server's defaults: time to first token, mean time between tokens


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Latencies:
    """Latencies of the requests of one class and tenant."""

    def __init__(self) -> None:
        self.firsts: list[float] = []  # time to first token of each finished request, in seconds
        self.longest: list[float] = []  # longest gap of each, in seconds
        self.gaps: dict[int, int] = {}  # number of gaps by length in tenths of a millisecond
        self.good = 0

    def gap(self, share: float) -> float:
        """Return the smallest gap that `share` of the gaps do not exceed, in milliseconds; 0 without gaps."""
        rank, seen = share * sum(self.gaps.values()), 0
        for tenths in sorted(self.gaps):
            seen += self.gaps[tenths]
            if seen >= rank:
                return 1000 * tenths / BINS_PER_SECOND
        return 0.0

    def add(self, others: Latencies) -> None:
        """Merge the latencies of other requests."""
        self.firsts += others.firsts
        self.longest += others.longest
        self.good += others.good
        for tenths, times in others.gaps.items():
            self.gaps[tenths] = self.gaps.get(tenths, 0) + times

    def figures(self) -> dict[str, float]:
        """Return percentiles in milliseconds; goodput is the share of answers within both limits."""
        return {
            "requests": len(self.firsts),
            "ttft_p50": 1000 * statistics.median(self.firsts),
            "ttft_p99": 1000 * percentile(self.firsts, 0.99),
            "ttft_max": 1000 * max(self.firsts),
            "itl_p50": self.gap(0.5),
            "itl_p99": self.gap(0.99),
            "itl_max": 1000 * max(self.longest),
            "longest_gap_p50": 1000 * statistics.median(self.longest),
            "longest_gap_p99": 1000 * percentile(self.longest, 0.99),
            "goodput": self.good / len(self.firsts),
        }


class _Answer:
    """Answer in progress."""

    __slots__ = ("at", "first", "gaps", "last", "latencies", "longest", "tokens")

    def __init__(self, at: float, latencies: Latencies) -> None:
        self.at, self.latencies, self.gaps = at, latencies, latencies.gaps
        self.first = self.last = self.longest = 0.0
        self.tokens = 0


class Tally:
    """Latencies of all requests of a run."""

    def __init__(self) -> None:
        self.tokens = 0
        self._latencies: dict[tuple[ServiceClass, str], Latencies] = {}
        self._answers: dict[str, _Answer] = {}

    def arrive(self, at: float, request: Request) -> tuple[float, Request]:
        """Register a request and return both arguments."""
        latencies = self._latencies.setdefault((request.service_class, request.tenant), Latencies())
        self._answers[request.id] = _Answer(at, latencies)
        return at, request

    def take(self, events: list[Event], now: float) -> None:
        """Count the events of a step."""
        answers, last, gap, tenths = self._answers, 0.0, now, int(now * BINS_PER_SECOND)
        for event in events:
            if type(event) is not TokenEvent:
                continue
            answer = answers[event.request_id]
            if answer.tokens:
                if answer.last != last:  # for nearly all answers, the last token is from the same step
                    last = answer.last
                    gap = now - last
                    tenths = int(gap * BINS_PER_SECOND)
                if gap > answer.longest:
                    answer.longest = gap
                gaps = answer.gaps
                gaps[tenths] = gaps.get(tenths, 0) + 1
            else:
                answer.first = now - answer.at
            answer.last = now
            answer.tokens += 1
            if event.finish is not None:
                self._end(self._answers.pop(event.request_id))

    def all(self) -> Latencies:
        """Return the latencies of all requests together."""
        together = Latencies()
        for latencies in self._latencies.values():
            together.add(latencies)
        return together

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return tokens per second, latencies of each class, and of each tenant in classes with several tenants."""
        found: dict[str, Any] = {"tokens_per_second": self.tokens / seconds, "seconds": seconds}
        for service_class in ServiceClass:
            of_class = {
                tenant: latencies
                for (c, tenant), latencies in self._latencies.items()
                if c is service_class and latencies.firsts
            }
            together = Latencies()
            for tenant, latencies in sorted(of_class.items()):
                together.add(latencies)
                if len(of_class) > 1:
                    found[f"{service_class.label}, {tenant}"] = latencies.figures()
            if of_class:
                found[service_class.label] = together.figures()
        return found

    def _end(self, answer: _Answer) -> None:
        latencies = answer.latencies
        latencies.firsts.append(answer.first)
        latencies.longest.append(answer.longest)
        mean = (answer.last - answer.at - answer.first) / max(1, answer.tokens - 1)
        latencies.good += answer.first <= GOOD_TTFT and mean <= GOOD_ITL
        self.tokens += answer.tokens
