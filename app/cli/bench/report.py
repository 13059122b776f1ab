"""Report of a run: a summary for programs and a short table for a terminal. page.py writes the HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.cli.bench.measure import Record, Slo, comparison, duration, summary
from app.cli.bench.plots import number, seconds

METRIC_NAMES = {
    "ttft": "first token",
    "between_events": "between events",
    "between_tokens": "between tokens",
    "e2e": "whole answer",
}
METRIC_WIDTH, P99_WIDTH = 16, 9  # characters of the columns
# share of tokens without text of their own from which the report has a warning
SILENT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: options, records and conditions."""

    origin: Mapping[str, Any]
    options: Mapping[str, Any]
    servers: Mapping[str, Mapping[str, Any]]  # a, and b if there is one
    records: Sequence[Record]
    slo: Slo
    seed: int
    interrupted: bool

    def summary(self) -> dict[str, Any]:
        """Return the machine-readable report. With two servers, `a` and `b` have the figures of each, over the whole
        run.
        """
        records, took = self.records, duration(self.records)
        report: dict[str, Any] = {
            "origin": self.origin,
            "options": self.options,
            "servers": self.servers,
            "interrupted": self.interrupted,
            "duration_s": took,
            **summary(records, self.slo, took),
        }
        if len(self.servers) > 1:
            by_server = {name: [record for record in records if record.server == name] for name in self.servers}
            report |= {name: summary(members, self.slo, took) for name, members in by_server.items()}
            report["b_over_a"] = comparison(by_server["a"], by_server["b"], self.seed)
        return report


def text(report: Mapping[str, Any]) -> str:
    """Return a few lines for the terminal."""
    every = report["all"]
    lines = [
        f"{every['done']} of {every['requests']} requests answered in {report['duration_s']:.1f} s: "
        f"{number(every['output_tokens_per_s'])} tokens/s, {number(every['requests_per_s'])} requests/s, "
        f"{100 * every['goodput']['share']:.0f}% within the objectives",
        *([f"not answered: {_reasons(every)}"] if every["not_done"] else []),
        *([warning] if (warning := textless_warning(every)) else []),
        "",
        f"{'':18}{'requests':>9}"
        + "".join(f"{name:>{METRIC_WIDTH}}{'p99':>{P99_WIDTH}}" for name in METRIC_NAMES.values()),
    ]
    for name, row in report_rows(report):
        times = "".join(
            f"{format_percentile(row[metric], percentile):>{width}}"
            for metric in METRIC_NAMES
            for percentile, width in (("p50", METRIC_WIDTH), ("p99", P99_WIDTH))
        )
        lines.append(f"{name[:17]:18}{row['requests']:>9}{times}")
    for metric, ratio in report.get("b_over_a", {}).get("all", {}).items():
        if ratio is not None:
            lines.append(f"B over A, {METRIC_NAMES[metric]}: median {_ratio(ratio['p50'])}, p99 {_ratio(ratio['p99'])}")
    return "\n".join(lines)


def report_rows(report: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield all requests, each class and tenant if there are several, and each of two servers, with their figures."""
    yield "all", report["all"]
    for kind, prefix in (("classes", ""), ("tenants", "tenant ")):
        if len(report[kind]) > 1:
            yield from ((prefix + name, row) for name, row in report[kind].items())
    for side in ("a", "b"):
        if side in report:
            yield f"server {side.upper()}", report[side]["all"]


def textless_warning(row: Mapping[str, Any]) -> str:
    """Return a warning if many tokens arrive without text of their own; otherwise an empty string."""
    share = row["tokens_without_text"] / row["output_tokens"] if row["output_tokens"] else 0.0
    if share < SILENT_SHARE:
        return ""
    return (
        f"{100 * share:.0f}% of the tokens had no text of their own (special tokens, parts of characters) and came "
        "with the next text: measured times to the first token and between events are too long. --ban-eos may help."
    )


def format_percentile(spread: Mapping[str, float] | None, percentile: str) -> str:
    """Return one figure of a spread as a time; a dash without values."""
    return "–" if spread is None else seconds(spread[percentile])


def _ratio(ratio: Mapping[str, float | None]) -> str:
    return "–" if ratio["ratio"] is None else f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _reasons(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} × {why}" for why, count in row["not_done"].items())
