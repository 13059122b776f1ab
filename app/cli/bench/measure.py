"""Figures from records: percentiles, rates, goodput, and confidence intervals for two servers. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
COMPARED_PERCENTILES = {"p50": 50, "p99": 99}
RESAMPLES = 1000
# Texts closer together than both arrive as one event: a server may send the tokens of a step in several pieces.
MAX_EVENT_SECONDS = 0.001
MAX_EVENT_SHARE = 0.25  # of the mean time between the texts of the answer
CONNECTION_ERROR = "connection"  # error code of an answer that did not arrive or was incomplete
TIERS = ("priority", "default", "flex")


class Event(NamedTuple):
    """Texts of an answer that arrived together. at: arrival of the first, in seconds. texts: their number."""

    at: float
    texts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request that was sent. Times are seconds from the start of the run."""

    number: int
    server: str  # a or b
    tier: str
    tenant: str
    requested_prompt: int  # tokens
    requested_output: int
    due: float
    sent: float
    ended: float
    outcome: str  # done, refused, failed, stopped
    status: int | None
    error: str | None = None
    message: str | None = None
    retry_after: float | None = None
    tokens: tuple[float, ...] = ()  # when text arrived; a token without text of its own arrives with the next one
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    time_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Return whether the request was answered in full."""
        return self.outcome == "done"

    @property
    def ttft(self) -> float | None:
        """Return the seconds from sending to the first text; None without text."""
        return self.tokens[0] - self.sent if self.tokens else None

    @property
    def events(self) -> list[Event]:
        """Return the events of the answer: texts that arrived together."""
        if not self.tokens:
            return []
        mean = (self.tokens[-1] - self.tokens[0]) / max(1, len(self.tokens) - 1)
        within = min(MAX_EVENT_SECONDS, MAX_EVENT_SHARE * mean)
        starts = [0, *(at for at in range(1, len(self.tokens)) if self.tokens[at] - self.tokens[at - 1] > within)]
        bounds = zip(starts, [*starts[1:], len(self.tokens)], strict=True)
        return [Event(self.tokens[start], end - start) for start, end in bounds]

    @property
    def between_events(self) -> list[float]:
        """Return the seconds between consecutive events."""
        return [after.at - before.at for before, after in pairwise(self.events)]

    @property
    def between_tokens(self) -> list[float]:
        """Return the seconds between two tokens, of each text after the first event: those from the event before,
        divided by the tokens of its own.
        """
        # The usage counts the tokens of the answer; each text has the same share of them.
        is_counted = self.is_done and self.tokens and self.completion_tokens
        tokens = self.completion_tokens / len(self.tokens) if is_counted else 1.0
        return [
            (after.at - before.at) / (after.texts * tokens)
            for before, after in pairwise(self.events)
            for _ in range(after.texts)
        ]

    @property
    def latency(self) -> float:
        """Return the seconds from sending to the end."""
        return self.ended - self.sent

    def is_good(self, slo: Slo) -> bool:
        """Return whether first token and mean gap are within the objectives, as in the server's own goodput."""
        if not self.is_done or self.ttft is None:
            return False
        gap = (self.tokens[-1] - self.tokens[0]) / max(1, self.completion_tokens - 1)
        return self.ttft <= slo.ttft and gap <= slo.itl


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives, in seconds."""

    ttft: float
    itl: float


# Values of each metric in one record: none, one or many.
METRICS: dict[str, Callable[[Record], list[float]]] = {
    "ttft": lambda record: [] if record.ttft is None else [record.ttft],
    "between_events": lambda record: record.between_events,
    "between_tokens": lambda record: record.between_tokens,
    "e2e": lambda record: [record.latency] if record.is_done else [],
}


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return percentiles, extremes and mean; None for no values."""
    if not values:
        return None
    array = np.asarray(values, np.float64)
    found = zip(PERCENTILES, np.percentile(array, list(PERCENTILES.values())).tolist(), strict=True)
    return {**dict(found), "max": float(array.max()), "mean": float(array.mean()), "n": len(values)}


def duration(records: Sequence[Record]) -> float:
    """Return the seconds from the first request to the last end."""
    if not records:
        return 0.0
    return max(record.ended for record in records) - min(record.sent for record in records)


def figures(records: Sequence[Record], seconds: float, slo: Slo) -> dict[str, Any]:
    """Return all figures of some requests of a run that took `seconds`. Latencies are in seconds; token counts include
    complete answers only.
    """
    done = [record for record in records if record.is_done]
    good = sum(record.is_good(slo) for record in records)
    output = sum(record.completion_tokens for record in done)
    prompt = sum(record.prompt_tokens for record in done)
    ends = [record for record in records if not record.is_done]
    return {
        "requests": len(records),
        **{outcome: sum(r.outcome == outcome for r in records) for outcome in ("done", "refused", "failed", "stopped")},
        "requests_per_s": _rate(len(done), seconds),
        "output_tokens": output,
        "output_tokens_per_s": _rate(output, seconds),
        "tokens_without_text": sum(max(0, record.completion_tokens - len(record.tokens)) for record in done),
        "prompt_tokens": prompt,
        "prompt_tokens_per_s": _rate(prompt, seconds),
        "cached_tokens": sum(record.cached_tokens for record in done),
        **{name: spread([value for r in records for value in values(r)]) for name, values in METRICS.items()},
        "refusal": spread([record.latency for record in records if record.outcome == "refused"]),
        "retry_after": spread([record.retry_after for record in records if record.retry_after is not None]),
        "late": spread([max(0.0, record.sent - record.due) for record in records]),
        "goodput": {"requests_per_s": _rate(good, seconds), "share": good / len(records) if records else 0.0},
        "not_done": dict(Counter(_why(record) for record in ends).most_common()),
        "phases_ms": phases(done),
    }


def phases(done: Sequence[Record]) -> dict[str, float]:
    """Return the mean time of an answer by phase, in milliseconds: the phases that the server reports, and `outside`
    for the rest. Empty if the server reports none.
    """
    reported = [record for record in done if record.time_ms]
    if not reported:
        return {}
    names = dict.fromkeys(name for record in reported for name in record.time_ms)
    mean = {name: sum(record.time_ms.get(name, 0.0) for record in reported) / len(reported) for name in names}
    outside = 1000 * sum(record.latency for record in reported) / len(reported) - sum(mean.values())
    return {**mean, "outside": max(0.0, outside)}


def groups(records: Sequence[Record]) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
    """Return records by class and, if there are tenants, by tenant."""
    tiers = [tier for tier in TIERS if any(record.tier == tier for record in records)]
    tenants = sorted({record.tenant for record in records} - {""})
    return (
        {tier: [record for record in records if record.tier == tier] for tier in tiers},
        {tenant: [record for record in records if record.tenant == tenant] for tenant in tenants},
    )


def summary(records: Sequence[Record], slo: Slo, seconds: float) -> dict[str, Any]:
    """Return the figures of all records, of each class and of each tenant."""
    tiers, tenants = groups(records)
    return {
        "all": figures(records, seconds, slo),
        "classes": {name: figures(members, seconds, slo) for name, members in tiers.items()},
        "tenants": {name: figures(members, seconds, slo) for name, members in tenants.items()},
    }


def comparison(a: Sequence[Record], b: Sequence[Record], seed: int) -> dict[str, Any]:
    """Return ratios B over A for each metric: of all requests, and of each class that both servers have."""
    tiers_a, tiers_b = groups(a)[0], groups(b)[0]
    pairs = {"all": (a, b)}
    if len(tiers_a) > 1 or len(tiers_b) > 1:
        pairs |= {tier: (tiers_a[tier], tiers_b[tier]) for tier in tiers_a if tier in tiers_b}
    return {
        name: {
            metric: ratios([values(r) for r in of_a], [values(r) for r in of_b], seed)
            for metric, values in METRICS.items()
        }
        for name, (of_a, of_b) in pairs.items()
    }


def ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], seed: int) -> dict[str, Any] | None:
    """Return quantiles of two samples, B over A, with 95 % intervals; None if one sample is empty.

    Uses the bootstrap's percentile interval (Efron, 1979). Whole requests are resampled, with all their values (Davison
    and Hinkley, 1997, chapter 3.8): the gaps of one answer are correlated, so resampling them one by one would give
    intervals that are too narrow.
    """
    a, b = [values for values in a if values], [values for values in b if values]
    if not a or not b:
        return None
    rng = np.random.default_rng(seed % 2**64)
    drawn_a, drawn_b = resampled(a, rng), resampled(b, rng)
    found: dict[str, Any] = {"n_a": len(a), "n_b": len(b)}
    for at, (name, quantile) in enumerate(COMPARED_PERCENTILES.items()):
        of_a, of_b = (float(np.percentile(np.concatenate([*map(np.asarray, side)]), quantile)) for side in (a, b))
        usable = drawn_a[:, at] > 0
        low, high = np.percentile(drawn_b[usable, at] / drawn_a[usable, at], (2.5, 97.5)) if usable.any() else (0, 0)
        found[name] = {
            "a": of_a,
            "b": of_b,
            "ratio": of_b / of_a if of_a > 0 else None,
            "low": float(low) if of_a > 0 else None,
            "high": float(high) if of_a > 0 else None,
        }
    return found


def resampled(groups: Sequence[Sequence[float]], rng: np.random.Generator) -> Values:
    """Return quantiles of samples that are drawn anew, in whole groups: [RESAMPLES, len(COMPARED_PERCENTILES)]."""
    values = np.concatenate([np.asarray(group, np.float64) for group in groups])
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    quantiles = np.asarray(list(COMPARED_PERCENTILES.values())) / 100
    found = np.empty((RESAMPLES, len(quantiles)))
    for row in found:
        times = np.bincount(rng.integers(0, len(groups), len(groups)), minlength=len(groups))
        sample = np.repeat(values, times[owner])  # sorted, as the values are
        place = quantiles * (len(sample) - 1)
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, len(sample) - 1)
        row[:] = sample[below] + (place - below) * (sample[above] - sample[below])
    return found


@dataclass(frozen=True, slots=True)
class Timeline:
    """Throughput and concurrency over time, in bins of equal width."""

    edges: list[float]  # one more than the number of bins
    tokens_per_s: list[float]
    in_flight: list[float]  # on average over the bin


def timeline(records: Sequence[Record], bins: int, end: float) -> Timeline:
    """Return throughput and concurrency from 0 to `end`. Tokens of an answer are spread over its texts."""
    edges = np.linspace(0.0, max(end, 1e-3), bins + 1)
    width = float(edges[1])
    moments = [moment for record in records for moment in record.tokens]
    weights = [
        max(record.completion_tokens, len(record.tokens)) / len(record.tokens) if record.is_done else 1.0
        for record in records
        for _ in record.tokens
    ]
    tokens, _ = np.histogram(moments, bins=edges, weights=weights)
    flight = np.zeros(bins)
    for record in records:
        flight += np.clip(np.minimum(edges[1:], record.ended) - np.maximum(edges[:-1], record.sent), 0.0, None)
    return Timeline([float(edge) for edge in edges], (tokens / width).tolist(), (flight / width).tolist())


def _why(record: Record) -> str:
    if record.outcome == "stopped":
        return "stopped"
    if record.outcome == "failed" and record.error == CONNECTION_ERROR:
        return "no answer" if record.status is None else "answer cut off"
    return f"{record.status} {record.error or ''}".strip()


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
