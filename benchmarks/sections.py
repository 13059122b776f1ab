"""A long run in sections: one that fails costs its own rows and no others, and what was measured is kept after each."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


class Sections:
    """Runs sections and collects the rows they add.

    rows: what was measured. failed: what sections raised, by name. left_out: why others were not begun, by name.
    """

    def __init__(
        self,
        keep: Callable[[Sections], None],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        works: Callable[[], bool] = lambda: True,
    ) -> None:
        """keep: called after each section, so that nothing is lost to what comes later. seconds: no section begins
        after so many. works: asked after each section whether the device still computes; none begins where it does
        not."""
        self._keep = keep
        self._clock = clock
        self._works = works
        self._ended_by: str | None = None  # the section in which the device failed
        self._until = clock() + seconds
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def run(self, name: str, measure: Callable[[], object]) -> None:
        """One section; what it raises is printed."""
        if self._ended_by is not None:
            self._leave_out(name, f"the device computes nothing after {self._ended_by}")
        elif self._clock() > self._until:
            self._leave_out(name, "the time is up")
        else:
            self._measure(name, measure)
        self._keep(self)

    def add(self, what: str, **row: Any) -> None:
        """Keep and print one row."""
        self.rows.append({"what": what, **row})
        print(f"{what:18} {'  '.join(f'{key} {_shown(value)}' for key, value in row.items())}", flush=True)

    def _measure(self, name: str, measure: Callable[[], object]) -> None:
        try:
            measure()
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
        if not self._works():
            self._ended_by = name
            self.failed.setdefault(name, "the device failed in it")  # which it may do after the host has gone on

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        print(f"{name}: left out, {why}", flush=True)


def _shown(value: object) -> str:
    if isinstance(value, dict):  # as `results.spread` makes it
        return f"{value['median']:.4g} ({value['min']:.4g} to {value['max']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
