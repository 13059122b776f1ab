"""Comparison of servers on a shared machine, in short alternating windows.

The parts of a comparison take turns of a few seconds, until each has enough windows without stolen CPU time. Ratios
come with a bootstrap interval. With stolen CPU time, two threads that wait for each other suffer more than one, and
figures reflect the neighbours.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tally import percentile

MAX_STOLEN_SHARE = 0.05  # maximum share of stolen CPU time of a quiet window
ROUNDS_PER_WINDOW = 5  # rounds per requested quiet window
RESAMPLES = 500


@dataclass
class Window:
    """Latencies of the measured requests in one window, in seconds."""

    firsts: list[float]  # time to first token
    gaps: list[float]  # between two tokens
    whole: list[float]  # whole answers
    stolen: float  # share of stolen CPU time
    busy: float = 0.0  # share of the time with a step in progress
    bulk: float = 0.0  # tokens of bulk work per second


def stolen() -> tuple[float, float]:
    """Return stolen and total CPU seconds of this machine (Linux; else zeros)."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0
    per_second = os.sysconf("SC_CLK_TCK")
    return ticks[7] / per_second, sum(ticks) / per_second


def stolen_since(before: tuple[float, float]) -> float:
    """Return the share of stolen CPU time since `before`, an earlier result of `stolen`."""
    lost, passed = (now - then for now, then in zip(stolen(), before, strict=True))
    return lost / passed if passed else 0.0


def figures(windows: list[Window]) -> dict[str, float]:
    """Return figures of all requests of these windows, in milliseconds; without requests, only those of the server."""
    found: dict[str, float] = {"windows": len(windows), "requests": sum(len(window.firsts) for window in windows)}
    if found["requests"]:
        for name, kind in (("ttft", "firsts"), ("itl", "gaps"), ("e2e", "whole")):
            values = [value for window in windows for value in getattr(window, kind)]
            found[f"{name}_p50"] = 1000 * statistics.median(values)
            found[f"{name}_p99"] = 1000 * percentile(values, 0.99)
    for name in ("busy", "bulk", "stolen"):
        found[name] = statistics.fmean(getattr(window, name) for window in windows)
    return found


def latency_ratios(some: list[Window], others: list[Window]) -> dict[str, float]:
    """Return the latency percentiles of some windows divided by those of others."""
    above, below = figures(some), figures(others)
    return {key: above[key] / below[key] for key in above if key.endswith(("p50", "p99"))}


def bootstrap_ratios(ratios: Callable[..., dict[str, float]], *groups: list[Window]) -> dict[str, dict[str, float]]:
    """Return the ratios of groups of windows with their 90 % bootstrap intervals, resampling each group's windows."""
    draw = random.Random(0).choices
    again = [ratios(*(draw(group, k=len(group)) for group in groups)) for _ in range(RESAMPLES)]
    found = {}
    for key, ratio in ratios(*groups).items():
        values = [sample[key] for sample in again]
        found[key] = {"ratio": ratio, "from": percentile(values, 0.05), "to": percentile(values, 0.95)}
    return found


class AlternatingWindows:
    """Collects the windows of each part of a comparison."""

    def __init__(self, parts: list[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.quiet: dict[str, list[Window]] = {name: [] for name in parts}
        self.every: dict[str, list[Window]] = {name: [] for name in parts}

    async def take(self, measure: Callable[[str, int], Awaitable[Window]], quiet_windows: int) -> None:
        """Call `measure(part, seed)` for all parts in turn until each has `quiet_windows` quiet windows.

        The order changes from round to round. The n-th quiet window has the same seed for all parts. When cancelled,
        for example by Ctrl-C, return with the windows so far if each part has at least one.
        """
        try:
            for turn in range(ROUNDS_PER_WINDOW * quiet_windows):
                await self._round(turn, measure, quiet_windows)
        except asyncio.CancelledError:
            if not all(self.every.values()):
                raise
            count = min(map(len, self.quiet.values()))
            print(f"Interrupted with at least {count} of {quiet_windows} quiet windows per part.")

    async def _round(self, turn: int, measure: Callable[[str, int], Awaitable[Window]], quiet_windows: int) -> None:
        parts = list(self.quiet)
        for name in parts[turn % len(parts) :] + parts[: turn % len(parts)]:
            if len(self.quiet[name]) == quiet_windows:
                continue
            window = await measure(name, len(self.quiet[name]) + 1)
            self.every[name].append(window)
            if window.stolen <= MAX_STOLEN_SHARE:
                self.quiet[name].append(window)
            row = {"turn": turn, "part": name, **figures([window])}
            self.rows.append(row)
            print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}, flush=True)

    def kinds(self) -> list[tuple[str, dict[str, list[Window]]]]:
        """Return names and windows by part: the quiet windows, if every part has one, and all windows."""
        both = [("quiet windows", self.quiet), ("all windows", self.every)]
        return [(name, windows) for name, windows in both if all(windows.values())]
