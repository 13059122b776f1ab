"""A long run in sections: one that fails costs its own rows and no others, and what was measured is kept after each.

One that takes its device or its process with it ends that process; `in_processes` has another one go on behind it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

DEVICE_FAILED = 3  # the status of a process for which the device computes nothing more
MOST_PROCESSES = 6  # that go on one behind the other


class Sections:
    """Runs sections and collects the rows they add.

    rows: what was measured. failed: what sections raised, by name. left_out: why others were not begun, by name.
    ended_by: the section in which the device failed.
    """

    def __init__(
        self,
        keep: Callable[[Sections], None],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        works: Callable[[], bool] = lambda: True,
        record: Path | None = None,
    ) -> None:
        """keep: called after each section, so that nothing is lost to what comes later. seconds: no section begins
        after so many. works: asked after each section whether the device still computes; none begins where it does
        not. record: of what was done, for a process that goes on behind this one; where it exists this one goes on."""
        self._keep = keep
        self._clock = clock
        self._works = works
        self._record = record
        self._over: list[str] = []  # sections that were begun and have ended
        self._until = clock() + seconds
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.ended_by: str | None = None
        if record is not None and record.exists():
            self._go_on(json.loads(record.read_text()))

    def run(self, name: str, measure: Callable[[], object]) -> None:
        """One section, unless it was run in a process before this one; what it raises is printed."""
        if name in self._over:
            return
        if self.ended_by is not None:
            self._leave_out(name, f"the device computes nothing after {self.ended_by}")
        elif self._clock() > self._until:
            self._leave_out(name, "the time is up")
        else:
            self._measure(name, measure)
        self._keep(self)

    def add(self, what: str, **row: Any) -> None:
        """Keep and print one row."""
        self.rows.append({"what": what, **row})
        print(f"{what:18} {'  '.join(f'{key} {_shown(value)}' for key, value in row.items())}", flush=True)

    def _go_on(self, done: dict[str, Any]) -> None:
        self.rows, self.failed, self._over = done["rows"], done["failed"], done["over"]
        if done["under_way"] is not None:
            self.failed[done["under_way"]] = "the process ended in it"
            self._over.append(done["under_way"])
            self._write(None)
        self._keep(self)

    def _write(self, under_way: str | None) -> None:
        if self._record is not None:
            done = {"rows": self.rows, "failed": self.failed, "over": self._over, "under_way": under_way}
            self._record.write_text(json.dumps(done))

    def _measure(self, name: str, measure: Callable[[], object]) -> None:
        self._write(name)
        try:
            measure()
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
        if not self._works():
            self.ended_by = name
            self.failed.setdefault(name, "the device failed in it")  # which it may do after the host has gone on
        self._over.append(name)
        self._write(None)

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        print(f"{name}: left out, {why}", flush=True)


def in_processes(command: Sequence[str], seconds: float) -> int:
    """Run `command`, which gives the values of --seconds and --record to its `Sections`, in a process; where that is
    killed or its device fails, again in another one, which goes on behind that section. The status of the last."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(MOST_PROCESSES):
            left = max(0.0, until - time.monotonic())
            more = ["--seconds", str(left), "--record", str(Path(folder) / "record.json")]
            status = subprocess.run([*command, *more], check=False).returncode
            if status >= 0 and status != DEVICE_FAILED:
                break
            print(f"a process ended with status {status}", flush=True)
    return status


def _shown(value: object) -> str:
    if isinstance(value, dict):  # as `results.spread` makes it
        return f"{value['median']:.4g} ({value['min']:.4g} to {value['max']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
