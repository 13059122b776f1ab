"""ChildProcess: a command whose lines are read and passed on. It ends with this process. Independent of Ray."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence

from app.child_environment import module_environment
from engine.parent_death import bound_command

# Variables that Ray sets for its own workers, and that a program which joins the cluster as another one must not have.
RAY_WORKER_VARIABLES = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_NODE_ID")


class ChildProcess:
    """A running command. Made and read on a thread that waits for it, because it ends with the thread that made it."""

    def __init__(self, command: Sequence[str], on_line: Callable[[str], None], on_end: Callable[[int], None]) -> None:
        """on_line: called with each line of output. on_end: called with the exit status. Both on another thread."""
        self._command = list(command)
        self._on_line, self._on_end = on_line, on_end
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = threading.Event()
        self._has_ended = threading.Event()
        threading.Thread(target=self._run, name="child", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """Ask it to end, and wait; kill it after some time."""
        self._is_stopped.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        if not self._has_ended.wait(seconds) and self._process is not None:
            self._process.kill()
            self._has_ended.wait()

    def _run(self) -> None:
        environment = module_environment()
        for name in RAY_WORKER_VARIABLES:
            environment.pop(name, None)
        process = self._process = subprocess.Popen(
            bound_command(self._command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        if self._is_stopped.is_set():
            process.send_signal(signal.SIGTERM)
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                self._on_line(line.rstrip())
        self._has_ended.set()
        self._on_end(process.returncode)
