"""Answers of a simulated fleet as their clients receive them: first tokens, and whether anything was lost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.tally import percentile
from engine.types import EndEvent, Event, Request, ServiceClass, TokenEvent


class Answer:
    """Tokens of one request, counted."""

    __slots__ = ("_clock", "at", "ended_at", "error", "first_at", "on_end", "request", "tokens")

    def __init__(
        self, request: Request, at: float, clock: Callable[[], float], on_end: Callable[[], None] | None = None
    ) -> None:
        """at: its arrival. clock: of its tokens. on_end: called with the last one."""
        self.request = request
        self.at = at
        self.first_at = 0.0
        self.ended_at: float | None = None
        self.error = ""
        self.tokens = 0
        self.on_end = on_end
        self._clock = clock

    def receive(self, event: Event) -> None:
        """Count an event of the request."""
        if type(event) is TokenEvent:
            if not self.tokens:
                self.first_at = self._clock()
            self.tokens += 1
            if event.finish is not None:
                self.ended_at = self._clock()
                if self.on_end is not None:
                    self.on_end()
        elif type(event) is EndEvent:
            self.ended_at = self._clock()
            self.error = event.code or event.finish.value

    @property
    def is_whole(self) -> bool:
        """Return whether each requested token arrived, once."""
        resumed = len(self.request.output_so_far.get(0, ()))
        return self.ended_at is not None and self.tokens + resumed == self.request.sampling.max_tokens


def first_tokens(answers: Iterable[Answer]) -> list[float]:
    """Return the milliseconds to the first token of answers that have one."""
    return [1000 * (answer.first_at - answer.at) for answer in answers if answer.tokens]


def percentiles(milliseconds: list[float]) -> dict[str, float]:
    """Return the number of values, and percentiles if there are any."""
    if not milliseconds:
        return {"requests": 0}
    return {
        "requests": len(milliseconds),
        "ttft_p50": statistics.median(milliseconds),
        "ttft_p99": percentile(milliseconds, 0.99),
        "ttft_max": max(milliseconds),
    }


def figures(answers: list[Answer], since: float) -> dict[str, Any]:
    """Return first-token figures by class of the requests that arrived from `since` on, and losses of all requests.

    firsts: of interactive requests, to be joined with those of other cells.
    """
    found: dict[str, Any] = {
        "requests": len(answers),
        "lost": sum(not answer.is_whole and not answer.error for answer in answers),
        "errors": sum(bool(answer.error) for answer in answers),
    }
    measured = [answer for answer in answers if answer.at >= since]
    for service_class in sorted({answer.request.service_class for answer in measured}):
        of_class = first_tokens(answer for answer in measured if answer.request.service_class is service_class)
        found[service_class.label] = percentiles(of_class)
        if service_class is ServiceClass.INTERACTIVE:
            found["firsts"] = of_class
    return found
