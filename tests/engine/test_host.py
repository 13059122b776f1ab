"""Priority of work that can wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.host import NICENESS
from tests.conftest import ROOT

MAX_NICENESS = 19  # of Linux
PROGRAM = """
import os, sys, threading
from engine.host import lower_priority
def run():
    thread_id = threading.get_native_id()
    for _ in range(2):
        lower_priority(thread_id)
    print(os.getpriority(os.PRIO_PROCESS, thread_id))
os.nice(int(sys.argv[1]))
threading.Thread(target=run).start()
"""


@pytest.mark.parametrize("niceness", [0, 5, 15])
def test_a_thread_that_can_wait_has_a_lower_priority_than_its_process(niceness: int):
    """Also in a process that has a low priority itself, and not lower each time."""
    given = min(MAX_NICENESS, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    command = [sys.executable, "-c", PROGRAM, str(niceness)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == min(MAX_NICENESS, given + NICENESS)
