"""A command that an actor runs as its child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from app.ray_launcher.child import ChildProcess
from tests.limits import HANG_SECONDS


class Output:
    """Lines and end of a child."""

    def __init__(self, code: str) -> None:
        self.lines: list[str] = []
        self.has_line, self.has_ended = threading.Event(), threading.Event()
        self.status: int | None = None
        self.child = ChildProcess([sys.executable, "-c", code], self._on_line, self._on_end)

    def _on_line(self, line: str) -> None:
        self.lines.append(line)
        self.has_line.set()

    def _on_end(self, status: int) -> None:
        self.status = status
        self.has_ended.set()


def test_the_lines_of_both_streams_and_the_status_are_passed_on():
    """The variables of Ray's own workers are not."""
    code = "import os, sys; print('a', os.environ.get('RAY_JOB_ID')); print('b', file=sys.stderr); sys.exit(3)"
    os.environ["RAY_JOB_ID"] = "01"
    try:
        output = Output(code)
        assert output.has_ended.wait(HANG_SECONDS)
    finally:
        del os.environ["RAY_JOB_ID"]
    assert sorted(output.lines) == ["a None", "b"] and output.status == 3


def test_a_child_is_asked_to_end_and_has_ended_then():
    """It may finish its work."""
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('finished', flush=True))); "
        "print('ready', flush=True); time.sleep(3600)"
    )
    output = Output(code)
    assert output.has_line.wait(HANG_SECONDS)
    output.child.stop(HANG_SECONDS)
    assert output.has_ended.wait(HANG_SECONDS)
    assert output.lines == ["ready", "finished"] and output.status == 0


def test_a_child_that_does_not_end_is_killed():
    """After its time."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(3600)"
    )
    output = Output(code)
    assert output.has_line.wait(HANG_SECONDS)
    output.child.stop(0.01)
    assert output.has_ended.wait(HANG_SECONDS) and output.status == -signal.SIGKILL


def test_a_child_ends_with_a_killed_parent():
    """An engine must not go on computing beside the one that replaces it."""
    parent_code = (
        "import sys, time; from app.ray_launcher.child import ChildProcess; "
        "ChildProcess([sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(3600)'], "
        "lambda line: print(line, flush=True), print); time.sleep(3600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + HANG_SECONDS
    while _exists(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
