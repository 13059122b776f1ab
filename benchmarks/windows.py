"""Comparing servers on a machine that is not ours alone: what is compared takes turns of a few seconds, until each part
has had enough windows in which the host left us our cores; and a ratio comes with what chance makes of it.

Where the host does not, two threads that wait for each other feel it more than one, and figures are the neighbours'.
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

QUIET = 0.05  # of the time of our cores that others had: a window with less counts as one on a machine of our own
PATIENCE = 5  # rounds for each quiet window that is asked for
RESAMPLES = 500


@dataclass
class Window:
    """What those who are looked at felt in it, in seconds."""

    firsts: list[float]  # to first tokens
    gaps: list[float]  # between two tokens
    whole: list[float]  # answers
    stolen: float  # share of the time of our cores that others had
    busy: float = 0.0  # share of the time in which a step was under way
    bulk: float = 0.0  # tokens of bulk work, a second


def stolen() -> tuple[float, float]:
    """Seconds of this machine's cores that others had instead of it, and seconds in all (Linux; else nothing)."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0
    per_second = os.sysconf("SC_CLK_TCK")
    return ticks[7] / per_second, sum(ticks) / per_second


def stolen_since(before: tuple[float, float]) -> float:
    """The share that others had since `before`, which `stolen` returned."""
    lost, passed = (now - then for now, then in zip(stolen(), before, strict=True))
    return lost / passed if passed else 0.0


def figures(windows: list[Window]) -> dict[str, float]:
    """All requests of these windows together, in milliseconds; without requests, what the server did."""
    found: dict[str, float] = {"windows": len(windows), "requests": sum(len(window.firsts) for window in windows)}
    if found["requests"]:
        for name, kind in (("ttft", "firsts"), ("itl", "gaps"), ("e2e", "whole")):
            values = [value for window in windows for value in getattr(window, kind)]
            found[f"{name}_p50"] = 1000 * statistics.median(values)
            found[f"{name}_p99"] = 1000 * percentile(values, 0.99)
    for name in ("busy", "bulk", "stolen"):
        found[name] = statistics.fmean(getattr(window, name) for window in windows)
    return found


def over(some: list[Window], others: list[Window]) -> dict[str, float]:
    """What is felt in some windows over what is in others."""
    above, below = figures(some), figures(others)
    return {key: above[key] / below[key] for key in above if key.endswith(("p50", "p99"))}


def by_chance(ratios: Callable[..., dict[str, float]], *groups: list[Window]) -> dict[str, dict[str, float]]:
    """The ratios of groups of windows, and between which nine in ten lie when the windows of each are drawn anew."""
    draw = random.Random(0).choices
    again = [ratios(*(draw(group, k=len(group)) for group in groups)) for _ in range(RESAMPLES)]
    found = {}
    for key, ratio in ratios(*groups).items():
        values = [sample[key] for sample in again]
        found[key] = {"ratio": ratio, "from": percentile(values, 0.05), "to": percentile(values, 0.95)}
    return found


class Turns:
    """The windows of each part of a comparison, after `take`."""

    def __init__(self, parts: list[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.quiet: dict[str, list[Window]] = {name: [] for name in parts}
        self.every: dict[str, list[Window]] = {name: [] for name in parts}

    async def take(self, measure: Callable[[str, int], Awaitable[Window]], wanted: int) -> None:
        """`measure` a part's window, with a seed that is the same for all parts' first, second, ... quiet one; in
        another order each round, until each part has had as many quiet ones as are `wanted`. Cancelled, as by Ctrl-C,
        it ends with what it has, if each part has had a window."""
        try:
            for turn in range(PATIENCE * wanted):
                await self._round(turn, measure, wanted)
        except asyncio.CancelledError:
            if not all(self.every.values()):
                raise
            print(f"cut off, with {min(map(len, self.quiet.values()))} of {wanted} quiet windows of each part")

    async def _round(self, turn: int, measure: Callable[[str, int], Awaitable[Window]], wanted: int) -> None:
        parts = list(self.quiet)
        for name in parts[turn % len(parts) :] + parts[: turn % len(parts)]:
            if len(self.quiet[name]) == wanted:
                continue
            window = await measure(name, len(self.quiet[name]) + 1)
            self.every[name].append(window)
            if window.stolen <= QUIET:
                self.quiet[name].append(window)
            row = {"turn": turn, "part": name, **figures([window])}
            self.rows.append(row)
            print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}, flush=True)

    def kinds(self) -> list[tuple[str, dict[str, list[Window]]]]:
        """Quiet windows, where each part has some, and all of them; with what they are called."""
        both = [("quiet windows", self.quiet), ("all windows", self.every)]
        return [(name, windows) for name, windows in both if all(windows.values())]
