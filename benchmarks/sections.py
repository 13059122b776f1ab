"""A long run in sections: one that fails costs its own rows and no others, and what was measured is kept after each."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


class Sections:
    """Runs sections and collects the rows they add.

    rows: what was measured. failed: what sections raised, by name. left_out: names of those whose turn came too late.
    """

    def __init__(
        self, keep: Callable[[Sections], None], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """keep: called after each section, so that nothing is lost to what comes later. seconds: no section begins
        after so many."""
        self._keep = keep
        self._clock = clock
        self._until = clock() + seconds
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.left_out: list[str] = []

    def run(self, name: str, measure: Callable[[], object]) -> None:
        """One section; what it raises is printed."""
        if self._clock() > self._until:
            self.left_out.append(name)
            print(f"{name}: left out, the time is up", flush=True)
        else:
            try:
                measure()
            except Exception as error:
                self.failed[name] = f"{type(error).__name__}: {error}"
                print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
        self._keep(self)

    def add(self, what: str, **row: Any) -> None:
        """Keep and print one row."""
        self.rows.append({"what": what, **row})
        print(f"{what:18} {'  '.join(f'{key} {_shown(value)}' for key, value in row.items())}", flush=True)


def _shown(value: object) -> str:
    if isinstance(value, dict):  # as `results.spread` makes it
        return f"{value['median']:.4g} ({value['min']:.4g} to {value['max']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
