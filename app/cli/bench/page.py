"""Report as an HTML page: one self-contained file with tables and plots, for any width, light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app.cli.bench import plots
from app.cli.bench.measure import METRICS, groups, timeline
from app.cli.bench.plots import Series, number, seconds
from app.cli.bench.report import METRIC_NAMES, Run, format_percentile, report_rows, textless_warning
from app.resources import static_dir

TIMELINE_BINS = 60  # of the timelines
PHASES = {
    "intake": "received",
    "queued": "queued",
    "prefill": "prompt read",
    "decode": "tokens written",
    "paused": "paused for others",
    "swapping": "pages brought back",
    "delivery": "handed over",
    "outside": "outside the server",
}
SHOWN_PERCENTILES = ("p50", "p90", "p99", "max")
MIN_P99_VALUES = 100  # number of values below which a 99th percentile is nearly the maximum


def page(run: Run, summary: Mapping[str, Any]) -> str:
    """Return the report as one self-contained HTML file."""
    title = f"carousel bench {run.options['workload']}"
    sections = [
        _head(run, summary, title),
        _tiles(summary),
        _section("Latency", _latency(summary) + _notes(summary)),
        *([_section("B against A", _compared(summary))] if "b_over_a" in summary else []),
        '<div class="pair">',
        _section("Time to first token", _distribution(run, "ttft")),
        _section("Between events", _distribution(run, "between_events")),
        _section("Between tokens", _distribution(run, "between_tokens")),
        _section("Output tokens per second", _timeline(run, "tokens_per_s")),
        _section("Requests in flight", _timeline(run, "in_flight")),
        "</div>",
        _section("Where the time of an answer went, on average", _phases(summary)),
        *([_section("Not answered", _unanswered(summary))] if summary["all"]["not_done"] else []),
        _section("How it was measured", _origin(summary)),
    ]
    style = (static_dir() / "css" / "tokens.css").read_text() + STYLE
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(run: Run, summary: Mapping[str, Any], title: str) -> str:
    names = {name: f"{name.upper()}: " if len(run.servers) > 1 else "" for name in run.servers}
    servers = " and ".join(
        escape(f"{names[name]}{server['model']} at {server['url']}") for name, server in run.servers.items()
    )
    stopped = " Stopped early: the figures cover only the requests sent until then." if run.interrupted else ""
    return (
        f"<header><h1>{escape(title)}</h1><p>{servers}, {escape(str(run.origin['when']))}. "
        f"{number(summary['all']['requests'])} requests in {summary['duration_s']:.1f} s.{stopped}</p></header>"
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    every = summary["all"]
    cached = every["cached_tokens"] / every["prompt_tokens"] if every["prompt_tokens"] else 0.0
    tiles = [
        (number(every["output_tokens_per_s"]), "output tokens/s"),
        (number(every["requests_per_s"]), "requests/s answered"),
        (format_percentile(every["ttft"], "p50"), "median first token"),
        (format_percentile(every["between_tokens"], "p50"), "median between tokens"),
        (f"{100 * every['goodput']['share']:.0f}%", f"good: {number(every['goodput']['requests_per_s'])} requests/s"),
        (f"{100 * cached:.0f}%", "of prompt tokens cached"),
        (number(every["refused"]), "refused"),
        (number(every["failed"]), "failed"),
    ]
    items = "".join(f"<div><dd>{escape(value)}</dd><dt>{escape(name)}</dt></div>" for value, name in tiles)
    return f'<dl class="tiles">{items}</dl>'


def _latency(summary: Mapping[str, Any]) -> str:
    tables = []
    for metric, name in METRIC_NAMES.items():
        rows = [
            [
                label,
                *(format_percentile(row[metric], percentile) for percentile in SHOWN_PERCENTILES),
                number(row[metric]["n"]) if row[metric] else "0",
            ]
            for label, row in report_rows(summary)
        ]
        tables.append(_table([name.capitalize(), *SHOWN_PERCENTILES, "values"], rows))
    rows = [
        [
            label,
            f"{row['done']:,} of {row['requests']:,}",
            number(row["requests_per_s"]),
            number(row["output_tokens_per_s"]),
            f"{100 * row['goodput']['share']:.0f}%",
        ]
        for label, row in report_rows(summary)
    ]
    tables.append(_table(["Throughput", "answered", "requests/s", "tokens/s", "good"], rows))
    return f'<div class="pair">{"".join(tables)}</div>'


def _notes(summary: Mapping[str, Any]) -> str:
    options, late = summary["options"], summary["all"]["late"]
    notes = [
        f"Good: the first token within {options['slo_ttft']:g} s and, on average over the answer, at most "
        f"{options['slo_itl']:g} s between tokens. Shares are of all requests that were sent.",
        "Between events: from one arrival of text to the next; an event has the tokens of a step. Between tokens: the "
        "same time, divided by the tokens of the event.",
    ]
    if any(
        row[metric] and row[metric]["n"] < MIN_P99_VALUES for _, row in report_rows(summary) for metric in METRIC_NAMES
    ):
        notes.append(f"Of fewer than {MIN_P99_VALUES} values the 99th percentile is nearly the largest.")
    if warning := textless_warning(summary["all"]):
        notes.append(warning)
    if late and late["max"] > 0.05:
        notes.append(
            f"Requests were sent late by {seconds(late['p50'])} (median) to {seconds(late['max'])}: "
            + ("they waited here for --max-concurrency" if options["max_concurrency"] else "this client was busy")
            + ". Latencies count from the time of sending."
        )
    return f'<p class="note">{escape(" ".join(notes))}</p>'


def _compared(summary: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{METRIC_NAMES[metric]}, {'median' if percentile == 'p50' else percentile}"
            + ("" if group == "all" else f", {group}"),
            seconds(ratio[percentile]["a"]),
            seconds(ratio[percentile]["b"]),
            "–" if ratio[percentile]["ratio"] is None else f"{ratio[percentile]['ratio']:.2f}",
            "–"
            if ratio[percentile]["ratio"] is None
            else f"{ratio[percentile]['low']:.2f} to {ratio[percentile]['high']:.2f}",
        ]
        for group, metrics in summary["b_over_a"].items()
        for metric, ratio in metrics.items()
        if ratio is not None
        for percentile in ("p50", "p99")
    ]
    sides = summary["a"]["all"], summary["b"]["all"]
    counts = [
        ["requests", *(number(side["requests"]) for side in sides)],
        ["answered", *(number(side["done"]) for side in sides)],
        ["refused", *(number(side["refused"]) for side in sides)],
        ["failed", *(number(side["failed"]) for side in sides)],
        ["good", *(f"{100 * side['goodput']['share']:.0f}%" for side in sides)],
        ["output tokens/s", *(number(side["output_tokens_per_s"]) for side in sides)],
    ]
    note = (
        f"Each request went to B with probability {summary['options']['share_b']:g}, so rates follow the shares. "
        "Compare latencies instead. Intervals: bootstrap over requests; one that contains 1.00 shows no difference. "
        "With few requests the intervals of p99 are too narrow, because an extreme that did not occur cannot be drawn."
    )
    tables = _table(["", "A", "B", "B/A", "95 % interval"], rows) + _table(["", "A", "B"], counts)
    return f'<div class="pair">{tables}</div><p class="note">{note}</p>'


def _series(run: Run, metric: str) -> list[Series]:
    """Return a curve for each class and server."""
    found = []
    for server in run.servers:
        tiers, _ = groups([record for record in run.records if record.server == server])
        for tier, members in tiers.items():
            values = [value for record in members for value in METRICS[metric](record)]
            name = tier if len(run.servers) == 1 else f"{tier}, {server.upper()}"
            found.append(Series(name, f"tier-{tier}", values, dashed=server == "b"))
    return found


def _distribution(run: Run, metric: str) -> str:
    series = _series(run, metric)
    entries = [(one.name, one.css_class, one.dashed) for one in series if one.values]
    label = f"Share of values at or below a time, {METRIC_NAMES[metric]}, by class"
    return plots.legend(entries) + plots.cdf(series, label)


def _timeline(run: Run, metric: str) -> str:
    end = max((record.ended for record in run.records), default=0.0)
    series, edges = [], [0.0, 1.0]
    for server in run.servers:
        found = timeline([record for record in run.records if record.server == server], TIMELINE_BINS, end)
        name = "all" if len(run.servers) == 1 else server.upper()
        edges = found.edges
        values = found.tokens_per_s if metric == "tokens_per_s" else found.in_flight
        series.append(Series(name, f"server-{server}", values, dashed=server == "b"))
    legend = plots.legend([(one.name, one.css_class, one.dashed) for one in series]) if len(series) > 1 else ""
    return legend + plots.time_series(edges, series, f"{metric.replace('_', ' ')} over time")


def _phases(summary: Mapping[str, Any]) -> str:
    rows = []
    for side in [side for side in ("a", "b") if side in summary] or [""]:
        figures = summary[side] if side else summary
        members = [("all", figures["all"]), *(figures["classes"].items() if len(figures["classes"]) > 1 else ())]
        for name, row in members:
            order = [phase for phase in PHASES if phase in row["phases_ms"]]
            order += [phase for phase in row["phases_ms"] if phase not in PHASES]
            if order:
                label = f"{name}, {side.upper()}" if side else name
                rows.append((label, {phase: row["phases_ms"][phase] for phase in order}))
    if not rows:
        return '<p class="none">The server does not report the time of an answer by phase.</p>'
    names = list(dict.fromkeys(phase for _, parts in rows for phase, value in parts.items() if value > 0))
    table = _table(
        ["", *(label for label, _ in rows)],
        [[PHASES.get(phase, phase), *(seconds(parts.get(phase, 0.0) / 1000) for _, parts in rows)] for phase in names],
    )
    return (
        plots.parts_legend([(phase, PHASES.get(phase, phase)) for phase in names])
        + plots.bars(rows, "Time by phase")
        + table
    )


def _unanswered(summary: Mapping[str, Any]) -> str:
    every, parts = summary["all"], []
    parts.append(_table(["Why", "requests"], [[why, number(count)] for why, count in every["not_done"].items()]))
    if every["refusal"]:
        percentiles = [format_percentile(every["refusal"], percentile) for percentile in SHOWN_PERCENTILES]
        parts.append(_table(["Refusals", *SHOWN_PERCENTILES], [["time to the refusal", *percentiles]]))
    if every["retry_after"]:
        percentiles = [format_percentile(every["retry_after"], percentile) for percentile in SHOWN_PERCENTILES]
        parts.append(_table(["Retry after", *SHOWN_PERCENTILES], [["Retry-After", *percentiles]]))
    return f'<div class="pair">{"".join(parts)}</div>'


def _origin(summary: Mapping[str, Any]) -> str:
    given = {name: value for name, value in summary["options"].items() if value is not None}
    facts = {**summary["origin"], **{f"--{name.replace('_', '-')}": value for name, value in given.items()}}
    rows = [[str(name), str(value)] for name, value in facts.items()]
    return _table(["", ""], rows, look="facts")


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inside}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], look: str = "") -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        first, *rest = (escape(cell) for cell in cells)
        return f'<tr><th scope="row">{first}</th>' + "".join(f"<{tag}>{cell}</{tag}>" for cell in rest) + "</tr>"

    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table class="{look}">{top}<tbody>{body}</tbody></table></div>'


STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper-2); color: var(--ink); font: var(--text-m)/1.5 var(--sans); }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; display: grid; gap: 1rem; }
main > *, .pair > * { min-width: 0; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 0.3rem; }
h2 { font-size: 1rem; margin: 0 0 0.7rem; }
header p, .note, .none { margin: 0; color: var(--ink-2); overflow-wrap: anywhere; }
.note { font-size: var(--text-s); margin-top: 0.8rem; max-width: 60rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: var(--radius); padding: 1rem 1.1rem; }
.pair { display: grid; gap: 1rem; grid-template-columns: repeat(2, 1fr); }
section .pair { gap: 1.2rem 2.4rem; }
.tiles { display: grid; gap: 0.6rem; grid-template-columns: repeat(4, 1fr); margin: 0; }
.tiles div { background: var(--paper); border: 1px solid var(--line); border-radius: var(--radius);
  padding: 0.7rem 0.9rem; }
.tiles dd { margin: 0; font-size: 1.35rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.25; }
.tiles dt { color: var(--ink-2); font-size: var(--text-s); }
.wide { overflow-x: auto; }
.wide + .wide { margin-top: 0.9rem; }
.pair > .wide + .wide { margin-top: 0; }
table { border-collapse: collapse; width: 100%; font-size: var(--text-s); font-variant-numeric: tabular-nums; }
th, td { padding: 0.28rem 0 0.28rem 0.8rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--ink-2); font-weight: 500; }
thead th[scope="row"] { color: var(--ink); font-weight: 600; }
th[scope="row"] { text-align: left; padding-left: 0; font-weight: 500; }
.facts { width: auto; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; padding-left: 1.6rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; margin: 0 0 0.4rem; padding: 0;
  font-size: var(--text-s); color: var(--ink-2); }
.legend svg { height: 0.7rem; margin-right: 0.4rem; vertical-align: -0.05rem; }
.plot { display: block; width: 100%; height: auto; max-width: 45rem; }
.plot + .wide { margin-top: 0.9rem; }
.plot text { font: 12.5px var(--sans); fill: var(--ink-2); font-variant-numeric: tabular-nums; }
.plot .row { fill: var(--ink); font-weight: 550; }
.grid { stroke: var(--line); fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.dashed { stroke-dasharray: 5 4; }
.under { fill: currentColor; opacity: 0.14; }
.tier-priority { color: var(--interactive); }
.tier-default { color: var(--standard); }
.tier-flex { color: var(--batch); }
.server-a { color: var(--accent); }
.server-b { color: var(--standard); }
rect { fill: var(--ink-3); }
.part-intake { fill: var(--line); }
.part-queued { fill: var(--line-strong); }
.part-prefill { fill: var(--standard); }
.part-decode { fill: var(--batch); }
.part-paused { fill: var(--danger); }
.part-swapping { fill: var(--lamp); }
.part-delivery { fill: var(--ink-3); }
.part-outside { fill: var(--empty); stroke: var(--line-strong); }
@media (max-width: 48rem) {
  main { padding: 1.1rem 0.75rem 3rem; }
  .pair { grid-template-columns: 1fr; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  section { padding: 0.85rem 0.8rem; }
  table { font-size: 0.75rem; }
  th, td { padding-left: 0.35rem; }
  .plot text { font-size: 18px; }
}
@media print { body { background: none; } section { break-inside: avoid; } }
"""
