"""From records to figures: percentiles, rates, goodput, and intervals for what differs between two servers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

QUANTILES = {"p50": 50, "p90": 90, "p99": 99}
COMPARED = {"p50": 50, "p99": 99}
RESAMPLES = 1000
BROKEN = "connection"  # error of an answer that did not come, or not to its end
TIERS = ("priority", "default", "flex")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request that was sent. Times in seconds since the first could have been."""

    number: int
    server: str  # a or b
    tier: str
    tenant: str
    asked_prompt: int  # tokens
    asked_output: int
    due: float
    sent: float
    ended: float
    outcome: str  # done, refused, failed, stopped
    status: int | None
    error: str | None = None
    message: str | None = None
    retry_after: float | None = None
    tokens: tuple[float, ...] = ()  # when text came; tokens without text of their own come with the next
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    time_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Answered in full."""
        return self.outcome == "done"

    @property
    def ttft(self) -> float | None:
        """Seconds from sending it to its first text."""
        return self.tokens[0] - self.sent if self.tokens else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]

    @property
    def latency(self) -> float:
        """Seconds from sending it to its end."""
        return self.ended - self.sent

    def is_good(self, slo: Slo) -> bool:
        """Within the objectives, as the server's own goodput has it: first token, and mean gap over the answer."""
        if not self.is_done or self.ttft is None:
            return False
        gap = (self.tokens[-1] - self.tokens[0]) / max(1, self.completion_tokens - 1)
        return self.ttft <= slo.ttft and gap <= slo.itl


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives, in seconds."""

    ttft: float
    itl: float


# What is measured of an answer: its values, none or many.
METRICS: dict[str, Callable[[Record], list[float]]] = {
    "ttft": lambda record: [] if record.ttft is None else [record.ttft],
    "itl": lambda record: record.gaps,
    "e2e": lambda record: [record.latency] if record.is_done else [],
}


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Percentiles, extremes and mean; None of nothing."""
    if not values:
        return None
    array = np.asarray(values, np.float64)
    marks = np.percentile(array, list(QUANTILES.values()))
    found = {name: float(mark) for name, mark in zip(QUANTILES, marks, strict=True)}
    return {**found, "max": float(array.max()), "mean": float(array.mean()), "n": len(values)}


def duration(records: Sequence[Record]) -> float:
    """Seconds from the first request to the last end."""
    if not records:
        return 0.0
    return max(record.ended for record in records) - min(record.sent for record in records)


def figures(records: Sequence[Record], seconds: float, slo: Slo) -> dict[str, Any]:
    """All figures of some requests of a run that took `seconds`. Latencies in seconds; tokens are those of answers that
    are complete."""
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
    """Where the time of an answer went, in milliseconds, on average: the server's account, and what it knows nothing
    of. Empty where the server keeps none."""
    told = [record for record in done if record.time_ms]
    if not told:
        return {}
    names = dict.fromkeys(name for record in told for name in record.time_ms)
    mean = {name: sum(record.time_ms.get(name, 0.0) for record in told) / len(told) for name in names}
    outside = 1000 * sum(record.latency for record in told) / len(told) - sum(mean.values())
    return {**mean, "outside": max(0.0, outside)}


def groups(records: Sequence[Record]) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
    """By class and, if there are any, by tenant."""
    tiers = [tier for tier in TIERS if any(record.tier == tier for record in records)]
    tenants = sorted({record.tenant for record in records} - {""})
    return (
        {tier: [record for record in records if record.tier == tier] for tier in tiers},
        {tenant: [record for record in records if record.tenant == tenant] for tenant in tenants},
    )


def summary(records: Sequence[Record], slo: Slo, seconds: float) -> dict[str, Any]:
    """Figures of all, of each class, of each tenant."""
    tiers, tenants = groups(records)
    return {
        "all": figures(records, seconds, slo),
        "classes": {name: figures(members, seconds, slo) for name, members in tiers.items()},
        "tenants": {name: figures(members, seconds, slo) for name, members in tenants.items()},
    }


def comparison(a: Sequence[Record], b: Sequence[Record], seed: int) -> dict[str, Any]:
    """B over A for each metric: all requests, and each class that both had."""
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
    """Quantiles of two samples, B over A, with 95 % intervals; None where one is empty.

    The bootstrap's percentile interval (Efron, 1979). What is drawn again is a request with all its values (Davison and
    Hinkley, 1997, chapter 3.8): the gaps of one answer are alike, and drawn singly they would promise too much.
    """
    a, b = [values for values in a if values], [values for values in b if values]
    if not a or not b:
        return None
    dice = np.random.default_rng(seed % 2**64)
    drawn_a, drawn_b = resampled(a, dice), resampled(b, dice)
    found: dict[str, Any] = {"n_a": len(a), "n_b": len(b)}
    for at, (name, quantile) in enumerate(COMPARED.items()):
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


def resampled(groups: Sequence[Sequence[float]], dice: np.random.Generator) -> Values:
    """Quantiles of samples drawn anew, whole groups at a time: [RESAMPLES, len(COMPARED)]."""
    values = np.concatenate([np.asarray(group, np.float64) for group in groups])
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    quantiles = np.asarray(list(COMPARED.values())) / 100
    found = np.empty((RESAMPLES, len(quantiles)))
    for row in found:
        times = np.bincount(dice.integers(0, len(groups), len(groups)), minlength=len(groups))
        sample = np.repeat(values, times[owner])  # sorted, as the values are
        place = quantiles * (len(sample) - 1)
        below = np.floor(place).astype(int)
        above = np.minimum(below + 1, len(sample) - 1)
        row[:] = sample[below] + (place - below) * (sample[above] - sample[below])
    return found


@dataclass(frozen=True, slots=True)
class Timeline:
    """What went on over time, in bins of equal width."""

    edges: list[float]  # one more than there are bins
    tokens_per_s: list[float]
    in_flight: list[float]  # on average over the bin


def timeline(records: Sequence[Record], bins: int, end: float) -> Timeline:
    """Tokens and requests in flight over time, from 0 to `end`. An answer's tokens are spread over its pieces."""
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
    if record.outcome == "failed" and record.error == BROKEN:
        return "no answer" if record.status is None else "answer cut off"
    return f"{record.status} {record.error or ''}".strip()


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
