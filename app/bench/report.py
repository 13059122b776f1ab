"""What is told of a run: its summary for machines, a short table for a terminal. page.py has it for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.measure import Record, Slo, comparison, duration, summary
from app.bench.plots import number, seconds

NAMES = {"ttft": "first token", "itl": "between tokens", "e2e": "whole answer"}
SILENT = 0.05  # of the tokens without text of their own, from which times between texts are not those of tokens


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run when it is over."""

    origin: Mapping[str, Any]
    options: Mapping[str, Any]
    servers: Mapping[str, Mapping[str, Any]]  # a, and b if there is one
    records: Sequence[Record]
    slo: Slo
    seed: int
    interrupted: bool

    def summary(self) -> dict[str, Any]:
        """The machine-readable report. With two servers `a` and `b` are the figures of each, over the whole time."""
        records, took = self.records, duration(self.records)
        told: dict[str, Any] = {
            "origin": self.origin,
            "options": self.options,
            "servers": self.servers,
            "interrupted": self.interrupted,
            "duration_s": took,
            **summary(records, self.slo, took),
        }
        if len(self.servers) > 1:
            of = {name: [record for record in records if record.server == name] for name in self.servers}
            told |= {name: summary(members, self.slo, took) for name, members in of.items()}
            told["b_over_a"] = comparison(of["a"], of["b"], self.seed)
        return told


def text(told: Mapping[str, Any]) -> str:
    """A few lines for the terminal."""
    every = told["all"]
    lines = [
        f"{every['done']} of {every['requests']} requests answered in {told['duration_s']:.1f} s: "
        f"{number(every['output_tokens_per_s'])} tokens/s, {number(every['requests_per_s'])} requests/s, "
        f"{100 * every['goodput']['share']:.0f}% within the objectives",
        *([f"not answered: {_reasons(every)}"] if every["not_done"] else []),
        *([warning] if (warning := silence(every)) else []),
        "",
        f"{'':18}{'requests':>9}{'first token':>14}{'p99':>10}{'between':>11}{'p99':>10}{'whole':>10}{'p99':>10}",
    ]
    for name, row in subjects(told):
        times = "".join(
            f"{mark_of(row[metric], mark):>{width}}"
            for metric, first in (("ttft", 14), ("itl", 11), ("e2e", 10))
            for mark, width in (("p50", first), ("p99", 10))
        )
        lines.append(f"{name[:17]:18}{row['requests']:>9}{times}")
    for metric, ratio in told.get("b_over_a", {}).get("all", {}).items():
        if ratio is not None:
            lines.append(f"B over A, {NAMES[metric]}: median {_ratio(ratio['p50'])}, p99 {_ratio(ratio['p99'])}")
    return "\n".join(lines)


def subjects(told: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """All, and each class and tenant where there is more than one; with two servers, each of them."""
    yield "all", told["all"]
    for kind, prefix in (("classes", ""), ("tenants", "tenant ")):
        if len(told[kind]) > 1:
            yield from ((prefix + name, row) for name, row in told[kind].items())
    for side in ("a", "b"):
        if side in told:
            yield f"server {side.upper()}", told[side]["all"]


def silence(row: Mapping[str, Any]) -> str:
    """A warning when what comes is not what is written, else empty."""
    share = row["tokens_without_text"] / row["output_tokens"] if row["output_tokens"] else 0.0
    if share < SILENT:
        return ""
    return (
        f"{100 * share:.0f}% of the tokens had no text of their own (special ones, parts of characters) and came with "
        "the next that had: times to the first and between tokens are longer than the server took. --ban-eos may help."
    )


def mark_of(spread: Mapping[str, float] | None, mark: str) -> str:
    """One figure of a spread, as a time; a dash where there are no values."""
    return "–" if spread is None else seconds(spread[mark])


def _ratio(ratio: Mapping[str, float | None]) -> str:
    return "–" if ratio["ratio"] is None else f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _reasons(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} × {why}" for why, count in row["not_done"].items())
