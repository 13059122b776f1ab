"""A long run in sections: one that fails costs its own rows and no others, and what was measured is kept after each.

One that takes its device or its process with it ends that process, and one that hangs is ended with it; `in_processes`
has another one go on behind it, which does no more with what was in use by then.
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

DEVICE_FAILED = 3  # the status of a process for which the device computes nothing more
MOST_PROCESSES = 10  # that go on one behind the other
MOST_SECONDS = 100.0  # of a section, more than any takes with all that it compiles


class GivenUp(Exception):
    """A section would need what is no longer used."""


class Sections:
    """Runs sections and collects the rows they add.

    rows: what was measured. failed: what sections raised, by name. left_out: why others were not measured, by name.
    given_up: why what sections use is used no more, by name. ended_by: the section in which the device failed.
    """

    def __init__(
        self,
        keep: Callable[[Sections], None],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        works: Callable[[], bool] = lambda: True,
        record: Path | None = None,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        """keep: called after each section, so that nothing is lost to what comes later. seconds: no section begins
        after so many. works: asked after each section whether the device still computes; none begins where it does
        not. record: of what was done, for a process that goes on behind this one; where it exists this one goes on.
        most_seconds: of a section, where there is a record; then it has hung, and ends the process."""
        self._keep = keep
        self._clock = clock
        self._works = works
        self._record = record
        self._most_seconds = most_seconds
        self._under_way: str | None = None
        self._used: str | None = None
        self._over: list[str] = []  # sections that were begun and have ended
        self._until = clock() + seconds
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
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

    def use(self, what: str) -> None:
        """What follows in this section is done with it: where that takes the process or the device with it, it is given
        up. Raises GivenUp where it was before."""
        if what in self.given_up:
            raise GivenUp(f"{what} is given up: {self.given_up[what]}")
        self._used = what
        self._write()

    def give_up(self, what: str, error: Exception) -> None:
        """It is not to be used any more; printed."""
        self.given_up[what] = f"{type(error).__name__}: {error}"
        print(f"{what}: given up\n{traceback.format_exc()}", flush=True)

    def add(self, what: str, **row: Any) -> None:
        """Keep and print one row."""
        self.rows.append({"what": what, **row})
        print(f"{what:18} {'  '.join(f'{key} {_shown(value)}' for key, value in row.items())}", flush=True)

    def _go_on(self, done: dict[str, Any]) -> None:
        self.rows, self.failed, self.left_out, self.given_up = (
            done[name] for name in ("rows", "failed", "left_out", "given_up")
        )
        self._over, self._under_way, self._used = done["over"], done["under_way"], done["used"]
        if self._under_way is not None:
            self._lose(self._under_way, "the process ended")
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
            except GivenUp as error:
                self._leave_out(name, str(error))
            except Exception as error:
                self.failed[name] = f"{type(error).__name__}: {error}"
                print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
            if not self._works():  # a fault may come after the host has gone on
                self.ended_by = name
                self._lose(name, "the device failed")
        self._end(name)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """What hangs ends the process, which says where: a thread sees to it that needs no interpreter, as who waits
        for a device may keep that for himself."""
        if self._record is not None:
            faulthandler.dump_traceback_later(self._most_seconds, exit=True, file=sys.__stderr__)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _lose(self, name: str, what: str) -> None:
        """A section took with it what another process has again."""
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
    """Run `command`, which gives the values of --seconds and --record to its `Sections`, in a process; where that ends
    in a section or its device fails, again in another one, which goes on behind that section. The status of the
    last."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        for _ in range(MOST_PROCESSES):
            left = max(0.0, until - time.monotonic())
            more = ["--seconds", str(left), "--record", str(record)]
            status = subprocess.run([*command, *more], check=False).returncode
            if status >= 0 and status != DEVICE_FAILED and not _is_under_way(record):
                break
            print(f"a process ended with status {status}", flush=True)
    return status


def _is_under_way(record: Path) -> bool:
    """Whether a section began and has not ended."""
    return record.exists() and json.loads(record.read_text())["under_way"] is not None


def _shown(value: object) -> str:
    if isinstance(value, dict):  # as `results.spread` makes it
        return f"{value['median']:.4g} ({value['min']:.4g} to {value['max']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
