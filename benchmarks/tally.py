"""What requests felt: first tokens, gaps between tokens, and how many answers were good; by class and tenant.

Made for tens of millions of tokens: gaps are counted in tenths of a millisecond, not kept.
"""

from __future__ import annotations

import statistics
from typing import Any

from engine.types import Event, Request, ServiceClass, TokenEvent

TENTHS = 1e4  # of a millisecond in a second
GOOD_TTFT, GOOD_ITL = 1.0, 0.1  # seconds, as the server's defaults: to the first token, and between tokens on average


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Felt:
    """By those of one class and tenant."""

    def __init__(self) -> None:
        self.firsts: list[float] = []  # seconds to the first token, of each request that has ended
        self.longest: list[float] = []  # gap of each
        self.gaps: dict[int, int] = {}  # how often each number of tenths of a millisecond
        self.good = 0

    def gap(self, share: float) -> float:
        """The smallest gap that `share` of them do not exceed, in milliseconds; 0 where there is none."""
        rank, seen = share * sum(self.gaps.values()), 0
        for tenths in sorted(self.gaps):
            seen += self.gaps[tenths]
            if seen >= rank:
                return 1000 * tenths / TENTHS
        return 0.0

    def add(self, others: Felt) -> None:
        """Those too."""
        self.firsts += others.firsts
        self.longest += others.longest
        self.good += others.good
        for tenths, times in others.gaps.items():
            self.gaps[tenths] = self.gaps.get(tenths, 0) + times

    def figures(self) -> dict[str, float]:
        """Milliseconds; goodput is the share of answers that were good."""
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
    """One under way."""

    __slots__ = ("at", "felt", "first", "gaps", "last", "longest", "tokens")

    def __init__(self, at: float, felt: Felt) -> None:
        self.at, self.felt, self.gaps = at, felt, felt.gaps
        self.first = self.last = self.longest = 0.0
        self.tokens = 0


class Tally:
    """Of all requests of a run."""

    def __init__(self) -> None:
        self.tokens = 0
        self._felt: dict[tuple[ServiceClass, str], Felt] = {}
        self._answers: dict[str, _Answer] = {}

    def arrive(self, at: float, request: Request) -> tuple[float, Request]:
        """Counted from here on."""
        felt = self._felt.setdefault((request.service_class, request.tenant), Felt())
        self._answers[request.id] = _Answer(at, felt)
        return at, request

    def take(self, events: list[Event], now: float) -> None:
        """What a step yielded."""
        answers, last, gap, tenths = self._answers, 0.0, now, int(now * TENTHS)
        for event in events:
            if type(event) is not TokenEvent:
                continue
            answer = answers[event.request_id]
            if answer.tokens:
                if answer.last != last:  # nearly all had their last token in the same step
                    last = answer.last
                    gap = now - last
                    tenths = int(gap * TENTHS)
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

    def all(self) -> Felt:
        """Everybody's."""
        together = Felt()
        for felt in self._felt.values():
            together.add(felt)
        return together

    def figures(self, seconds: float) -> dict[str, Any]:
        """Tokens a second, and what each class felt; and each tenant of a class that has several."""
        found: dict[str, Any] = {"tokens_per_second": self.tokens / seconds, "seconds": seconds}
        for service_class in ServiceClass:
            of_class = {tenant: felt for (c, tenant), felt in self._felt.items() if c is service_class and felt.firsts}
            together = Felt()
            for tenant, felt in sorted(of_class.items()):
                together.add(felt)
                if len(of_class) > 1:
                    found[f"{service_class.label}, {tenant}"] = felt.figures()
            if of_class:
                found[service_class.label] = together.figures()
        return found

    def _end(self, answer: _Answer) -> None:
        felt = answer.felt
        felt.firsts.append(answer.first)
        felt.longest.append(answer.longest)
        mean = (answer.last - answer.at - answer.first) / max(1, answer.tokens - 1)
        felt.good += answer.first <= GOOD_TTFT and mean <= GOOD_ITL
        self.tokens += answer.tokens
