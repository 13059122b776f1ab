"""A server for which too few threads can be started says so in one line, with the limit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import thread_limits
from app.cli.thread_limits import check_threads, start_tokenizer_threads
from app.settings import SettingsError
from tests.conftest import ROOT

SERVE = f"exec {sys.executable} -m app serve demo --port 0"


@pytest.fixture
def process_group() -> Iterator[Path]:
    """Yield a new control group of this machine for processes; skip the test where none can be made."""
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = parent / f"carousel-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            yield group
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("needs the right to make a control group with a limit of processes")


def run(command: str) -> tuple[int, list[str]]:
    """Run a shell command; return its exit status and the lines on standard error."""
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr.splitlines()


def test_a_control_group_with_too_few_processes_is_named(process_group: Path):
    """The exit status is 2, and nothing is loaded before."""
    (process_group / "pids.max").write_text("6")
    status, lines = run(f"echo $$ > {process_group}/cgroup.procs; {SERVE}")
    assert status == 2 and len(lines) == 1
    assert lines[0].startswith("carousel: only 5 of the ")
    assert f"pids.max of the control group /{process_group.name} is 6" in lines[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root has no limit of its own processes")
def test_a_ulimit_with_too_few_processes_is_named():
    """The processes of the same user count, whatever their number is."""
    status, lines = run(f"ulimit -u 1; {SERVE}")
    assert status == 2 and len(lines) == 1
    assert "`ulimit -u` is 1" in lines[0]


def test_threads_that_were_started_for_the_trial_have_ended(monkeypatch: pytest.MonkeyPatch):
    """Also if one of them could not be started; the line has both numbers."""
    started: list[thread_limits.threading.Thread] = []

    class Limited(thread_limits.threading.Thread):
        def start(self) -> None:
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
            super().start()
            started.append(self)

    monkeypatch.setattr(thread_limits, "num_cores", lambda: 2)
    monkeypatch.setattr(thread_limits.threading, "Thread", Limited)
    with pytest.raises(SettingsError, match="only 3 of the 20 threads"):
        check_threads()
    assert not any(thread.is_alive() for thread in started)


class PanicException(BaseException):
    """As raised by the tokenizer's library."""


def test_a_tokenizer_without_threads_is_found_before_the_first_request():
    """Its library reports it by an exception that is no `Exception`."""

    def panic(texts: list[str]) -> None:
        raise PanicException("The global thread pool has not been initialized")

    model = SimpleNamespace(tokenizer=SimpleNamespace(encode_batch_fast=panic))
    with pytest.raises(SettingsError, match="the tokenizer cannot start its threads"):
        start_tokenizer_threads(model)
