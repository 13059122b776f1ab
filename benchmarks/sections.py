"""Long benchmark run in sections: a failing section costs only its own rows, and results are saved after each section.

A section that crashes the device or hangs ends its process. `in_processes` continues the run after that section in a
new process, which no longer uses the feature that was in use at the time.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]

DEVICE_FAILED = 3  # exit status of a process that has lost its device
MAX_PROCESSES = 10  # maximum number of successive processes
MAX_SECTION_SECONDS = 100.0  # limit of a section; more than any section takes including compilation


class FeatureDisabled(Exception):
    """A section needs a feature that is no longer used."""


class Sections:
    """Runs sections and collects the rows they add.

    rows: measurements. failed: exceptions by section name. left_out: reasons by name of skipped section. given_up:
    reasons by name of feature that is no longer used. ended_by: section in which the device failed.
    """

    def __init__(
        self,
        keep: Callable[[Sections], None],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        works: Callable[[], bool] = lambda: True,
        record: Path | None = None,
        max_seconds: float = MAX_SECTION_SECONDS,
    ) -> None:
        """Resume from `record` if that file exists.

        keep: called after each section to save results. seconds: no section starts after this time. works: called
        after each section; returns whether the device still works, otherwise no further section starts. record: file
        with the progress, for a process that continues after this one. max_seconds: with a record, a section that
        takes longer has hung and ends the process.
        """
        self._keep = keep
        self._clock = clock
        self._works = works
        self._record = record
        self._max_seconds = max_seconds
        self._under_way: str | None = None
        self._used: str | None = None
        self._over: list[str] = []  # sections that have ended
        self._until = clock() + seconds
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        self.ended_by: str | None = None
        if record is not None and record.exists():
            self._resume(json.loads(record.read_text()))

    def run(self, name: str, measure: Callable[[], object]) -> None:
        """Run one section, unless an earlier process ran it. Exceptions are printed and recorded."""
        if name in self._over:
            return
        if self.ended_by is not None:
            self._leave_out(name, f"the device has failed in {self.ended_by}")
        elif self._clock() > self._until:
            self._leave_out(name, "the time limit is reached")
        else:
            self._measure(name, measure)
        self._keep(self)

    def use_feature(self, what: str) -> None:
        """Declare the feature that the rest of this section uses; if the process or device fails, it is given up.

        Raises GivenUp if it was given up before.
        """
        if what in self.given_up:
            raise FeatureDisabled(f"{what} is no longer used: {self.given_up[what]}")
        self._used = what
        self._write()

    def disable(self, what: str, error: Exception) -> None:
        """Record and print that a feature is no longer used."""
        self.given_up[what] = f"{type(error).__name__}: {error}"
        print(f"{what}: given up\n{traceback.format_exc()}", flush=True)

    def add(self, what: str, **row: Any) -> None:
        """Record and print one row."""
        self.rows.append({"what": what, **row})
        print(f"{what:18} {'  '.join(f'{key} {_shown(value)}' for key, value in row.items())}", flush=True)

    def _resume(self, done: dict[str, Any]) -> None:
        self.rows, self.failed, self.left_out, self.given_up = (
            done[name] for name in ("rows", "failed", "left_out", "given_up")
        )
        self._over, self._under_way, self._used = done["over"], done["under_way"], done["used"]
        if self._under_way is not None:
            self._record_failure(self._under_way, "the process ended")
            self._end(self._under_way)
        self._keep(self)

    def _write(self) -> None:
        if self._record is not None:
            done = {
                "rows": self.rows, "failed": self.failed, "left_out": self.left_out, "given_up": self.given_up,
                "over": self._over, "under_way": self._under_way, "used": self._used,
            }  # fmt: skip
            self._record.write_text(json.dumps(done))

    def _measure(self, name: str, measure: Callable[[], object]) -> None:
        self._under_way, self._used = name, None
        self._write()
        with self._watched():
            try:
                measure()
            except FeatureDisabled as error:
                self._leave_out(name, str(error))
            except Exception as error:
                self.failed[name] = f"{type(error).__name__}: {error}"
                print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
            if not self._works():  # device faults are asynchronous and may be reported late
                self.ended_by = name
                self._record_failure(name, "the device failed")
        self._end(name)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the process with a traceback if the section hangs.

        Uses a watchdog thread that does not need the interpreter lock, because waiting for a device may hold it.
        """
        if self._record is not None:
            faulthandler.dump_traceback_later(self._max_seconds, exit=True, file=sys.__stderr__)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _record_failure(self, name: str, what: str) -> None:
        """Record that a section lost the device or the process, and give up the feature in use."""
        self.failed.setdefault(name, f"{what} in it")
        if self._used is not None:
            self.given_up[self._used] = f"{what} in {name}"

    def _end(self, name: str) -> None:
        self._over.append(name)
        self._under_way = None
        self._write()

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        print(f"{name}: left out, {why}", flush=True)


def in_processes(command: Sequence[str], seconds: float) -> int:
    """Run `command` with --seconds and --record, which it passes to its `Sections`, in a process.

    If the process ends in a section or its device fails, run it again to continue after that section. Return the exit
    status of the last process.
    """
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        for _ in range(MAX_PROCESSES):
            left = max(0.0, until - time.monotonic())
            more = ["--seconds", str(left), "--record", str(record)]
            status = subprocess.run([*command, *more], check=False).returncode
            if status >= 0 and status != DEVICE_FAILED and not _is_under_way(record):
                break
            print(f"A process ended with status {status}.", flush=True)
    return status


def _is_under_way(record: Path) -> bool:
    """Return whether a section has started and not ended."""
    return record.exists() and json.loads(record.read_text())["under_way"] is not None


def _shown(value: object) -> str:
    if isinstance(value, dict):  # a result of `results.spread`
        return f"{value['median']:.4g} ({value['min']:.4g} to {value['max']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
