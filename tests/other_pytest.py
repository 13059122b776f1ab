"""Tests that are run by another pytest, whose processor or device is not this one's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_pytest(arguments: Iterable[str], **environment: str | None) -> str:
    """What it says, where no test fails. environment: what differs from ours; None: it is not there."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    return run(command, **environment)


def run(command: Sequence[str], **environment: str | None) -> str:
    """What it writes to its standard output. environment: what differs from ours; None: it is not there. Raises
    `AssertionError` with what it said where it fails."""
    changed = {name: value for name, value in (os.environ | environment).items() if value is not None}
    done = subprocess.run(command, cwd=ROOT, env=changed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def count_passed(told: str) -> int:
    """Of tests that have all passed, with none left out."""
    passed = re.fullmatch(r"(\d+) passed in .*", told.splitlines()[-1])
    assert passed, told[-4000:]
    return int(passed[1])
