"""End of a child process together with its parent, however that ends: a kill -9 included.

A child calls `end_with_parent` first. This file runs programs of others, such as pip: `python -P parent_death.py PID
PROGRAM ...`; the setting is kept across exec. Imports nothing of this project, so that it runs from any folder.

The system sends the signal when the *thread* that made the child ends, so children are made by threads that outlive
them: the one with the event loop, or one that waits for the child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
ORPHAN_STATUS = 1  # exit status of a process whose parent has ended before the call


def end_with_parent(pid: int) -> None:
    """Let the system kill this process when its parent, process `pid`, ends; on Linux only."""
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != pid:  # it has ended already, so no signal follows
        raise SystemExit(ORPHAN_STATUS)


def bound_command(command: list[str]) -> list[str]:
    """Return the command that runs `command` as a child of this process that ends with it."""
    return [sys.executable, "-P", str(Path(__file__)), str(os.getpid()), *command]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
