"""What takes long in a process of its own is begun before the first test, and waited for by those that ask about it.

Most tests wait, for a server or a browser; what they leave of the cores is otherwise left to nobody.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_in_turn = ThreadPoolExecutor(1, "beforehand")
_running: set[subprocess.Popen[str]] = set()


class Beforehand:
    """Some processes by name: `@pytest.mark.beforehand(these)` has them begun, `these[name]` is what one of them says.
    It fails where that one failed."""

    def __init__(self, commands: dict[str, Callable[[], str]]) -> None:
        """commands: each calls `run`."""
        self._commands = commands
        self._told: dict[str, Future[str]] = {}

    def begin(self) -> None:
        """Once more does nothing."""
        for name, command in self._commands.items():
            if name not in self._told:
                self._told[name] = _in_turn.submit(command)

    def __getitem__(self, name: str) -> str:
        return self._told[name].result()


def run(command: Sequence[str], **environment: str | None) -> str:
    """What it writes to its standard output. environment: what differs from ours; None: it is not there. Raises
    `AssertionError` with what it said where it fails. Whoever runs beside it goes first."""
    changed = {name: value for name, value in (os.environ | environment).items() if value is not None}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(["nice", "-n", "19", *command], cwd=ROOT, env=changed, **pipes, text=True) as process:
        _running.add(process)
        written, complaints = process.communicate()
        _running.discard(process)
    if process.returncode:
        raise AssertionError(f"{command} failed:\n{written[-4000:]}\n{complaints[-4000:]}")
    return written


def end() -> None:
    """Nobody asks any more."""
    _in_turn.shutdown(wait=False, cancel_futures=True)
    for process in list(_running):
        process.kill()
