"""Plots as SVG text: distributions, time series, stacked bars. Colours are CSS classes of the surrounding page. Has no
knowledge of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 276
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 30
MIN_SECONDS = 1e-4  # left end of a logarithmic axis; tokens of one read differ by less
MAX_POINTS = 240  # maximum number of points of a curve
BAR, ROW = 20, 52


@dataclass(frozen=True, slots=True)
class Series:
    """Values with a name and a style."""

    name: str
    css_class: str  # a CSS class
    values: Sequence[float]
    dashed: bool = False


def seconds(value: float) -> str:
    """Format a time with three digits and a unit: 870 µs, 12.3 ms, 1.05 s."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {unit}"
    return "0" if value <= 0 else f"{_three(value / 1e-6)} µs"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def number(value: float) -> str:
    """Format a count or a rate: 12,300, 123, 4.56."""
    return f"{value:,.0f}" if value >= 99.95 or value == int(value) else _three(value)


def ticks(highest: float, about: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `highest`."""
    if not 0 < highest < math.inf:
        return [0.0, 1.0]
    rough = highest / about
    size = 10 ** math.floor(math.log10(rough))
    step = next(step for step in (1, 2, 2.5, 5, 10) if step * size >= rough * 0.999) * size
    return [step * at for at in range(math.ceil(highest / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each decade between `low` and `high`; fewer for a wide range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    marks = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 3 else (1,)
    found = [mark * 10.0**power for power in range(first, last + 1) for mark in marks]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]


def curve(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return a cumulative distribution as points of a staircase: (value, share of values at or below it)."""
    ordered, count = sorted(values), len(values)
    places = (
        range(count)
        if count <= MAX_POINTS
        else sorted({round(at * (count - 1) / MAX_POINTS) for at in range(MAX_POINTS + 1)})
    )
    return [(ordered[at], (at + 1) / count) for at in places]


def cdf(series: Sequence[Series], label: str) -> str:
    """Plot cumulative distributions of times in seconds, on a logarithmic axis."""
    shown = [one for one in series if len(one.values)]
    if not shown:
        return empty_plot()
    every = [max(MIN_SECONDS, value) for one in shown for value in one.values]
    low, high = _decade_part(min(every), down=True), _decade_part(max(every), down=False)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(max(MIN_SECONDS, value) / low) / math.log(high / low)

    parts = [_axes([(x(tick), _tick_time(tick)) for tick in log_ticks(low, high)], _y(1.0), [0, 0.25, 0.5, 0.75, 1.0])]
    for one in shown:
        y, points = _y(1.0), curve(one.values)
        path = f"M{x(points[0][0]):.1f} {y(0):.1f}"
        path += "".join(f"H{x(value):.1f}V{y(share):.1f}" for value, share in points)
        parts.append(_path(path + f"H{WIDTH - RIGHT}", one))
    return _svg("".join(parts), label)


def time_series(edges: Sequence[float], series: Sequence[Series], label: str) -> str:
    """Plot values over time, one for each bin between `edges` (seconds)."""
    highest = max((value for one in series for value in one.values), default=0.0)
    marks, last = ticks(highest, 4), edges[-1]
    y = _y(marks[-1])

    def x(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * moment / last

    times = [tick for tick in ticks(last, 6) if tick <= last]
    parts = [_axes([(x(tick), f"{tick:g} s") for tick in times], y, marks, number)]
    for one in series:
        path = f"M{LEFT} {y(0):.1f}" + "".join(
            f"V{y(value):.1f}H{x(edge):.1f}" for value, edge in zip(one.values, edges[1:], strict=True)
        )
        parts.append(_path(path, one, filled=len(series) == 1))
    return _svg("".join(parts), label)


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], label: str) -> str:
    """Plot horizontal stacked bars of parts in milliseconds; the CSS class of a part is part-NAME."""
    highest = max((sum(parts.values()) for _, parts in rows), default=0.0)
    if highest <= 0:
        return empty_plot()
    marks = [tick for tick in ticks(highest, 4) if tick <= highest * 1.001]
    height, usable = len(rows) * ROW + 30, WIDTH - 2 * RIGHT - 10
    drawn = [
        f'<path class="grid" d="M{RIGHT + usable * mark / highest:.1f} 0V{height - 26}"/>'
        f'<text class="tick" x="{RIGHT + usable * mark / highest:.1f}" y="{height - 8}" '
        f'text-anchor="{"start" if mark == 0 else "middle" if mark < 0.95 * highest else "end"}">'
        f"{seconds(mark / 1000)}</text>"
        for mark in marks
    ]
    for at, (name, parts) in enumerate(rows):
        top, left = at * ROW, float(RIGHT)
        total = seconds(sum(parts.values()) / 1000)
        drawn.append(f'<text class="row" x="{RIGHT}" y="{top + 15}">{escape(name)}: {total}</text>')
        for part, value in parts.items():
            width = usable * value / highest
            drawn.append(
                f'<rect class="part-{escape(part)}" x="{left:.1f}" y="{top + 22}" width="{width:.1f}" height="{BAR}">'
                f"<title>{escape(part)}: {seconds(value / 1000)}</title></rect>"
            )
            left += width
    return _svg("".join(drawn), label, height)


def legend(entries: Sequence[tuple[str, str, bool]]) -> str:
    """Return a legend: (name, CSS class, dashed)."""
    items = "".join(
        f'<li><svg viewBox="0 0 24 10" aria-hidden="true"><path class="line {look}{" dashed" if dashed else ""}" '
        f'd="M1 5H23"/></svg>{escape(name)}</li>'
        for name, look, dashed in entries
    )
    return f'<ul class="legend">{items}</ul>'


def parts_legend(names: Sequence[tuple[str, str]]) -> str:
    """Return a legend of the parts of `bars`: (name, description)."""
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect class="part-{escape(name)}" width="12" height="12"/>'
        f"</svg>{escape(text)}</li>"
        for name, text in names
    )
    return f'<ul class="legend">{items}</ul>'


def empty_plot() -> str:
    """Return a placeholder for a plot without values."""
    return '<p class="none">No such values in this run.</p>'


def _decade_part(value: float, *, down: bool) -> float:
    """Return 1, 2 or 5 of a decade, at or beyond `value`."""
    size = 10.0 ** math.floor(math.log10(value))
    steps = [step * size for step in (1, 2, 5, 10, 20)]
    if down:
        return max(step for step in steps if step <= value) if value > size else size / 2
    return min(step for step in steps if step > value)


def _tick_time(value: float) -> str:
    return f"{value:g} s" if value >= 0.999 else f"{1000 * value:g} ms"


def _y(highest: float) -> Callable[[float], float]:
    return lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / highest


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def _axes(
    across: Sequence[tuple[float, str]],
    y: Callable[[float], float],
    up: Sequence[float],
    label_of: Callable[[float], str] = _percent,
) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    drawn = [f'<path class="grid" d="M{LEFT} {y(value):.1f}H{right}"/>' for value in up]
    drawn += [
        f'<text class="tick" x="{LEFT - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{label_of(value)}</text>'
        for value in up
    ]
    drawn += [f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>' for x, _ in across]
    drawn += [
        f'<text class="tick" x="{x:.1f}" y="{bottom + 20}" text-anchor="{"end" if x > right - 12 else "middle"}">'
        f"{escape(text)}</text>"
        for x, text in across
    ]
    return "".join(drawn)


def _path(path: str, one: Series, *, filled: bool = False) -> str:
    dashed = " dashed" if one.dashed else ""
    under = f'<path class="under {one.css_class}" d="{path}V{HEIGHT - BOTTOM}Z"/>' if filled else ""
    return f'{under}<path class="line {one.css_class}{dashed}" d="{path}"><title>{escape(one.name)}</title></path>'


def _svg(inside: str, label: str, height: float = HEIGHT) -> str:
    return f'<svg class="plot" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">{inside}</svg>'
