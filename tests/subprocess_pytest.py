"""Subprocess pytest runs, for tests that need another processor or device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_pytest(arguments: Iterable[str], **environment: str | None) -> str:
    """Run pytest and return its output.

    `environment` overrides variables of this process; None removes one. Raises `AssertionError` if a test fails.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    return run(command, **environment)


def run(command: Sequence[str], **environment: str | None) -> str:
    """Run a command and return its standard output.

    `environment` overrides variables of this process; None removes one. Raises `AssertionError` with the output if the
    command fails.
    """
    changed = {name: value for name, value in (os.environ | environment).items() if value is not None}
    done = subprocess.run(command, cwd=ROOT, env=changed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def count_passed(output: str) -> int:
    """Return the number of passed tests from pytest's output, and fail if a test was skipped or failed."""
    passed = re.fullmatch(r"(\d+) passed in .*", output.splitlines()[-1])
    assert passed, output[-4000:]
    return int(passed[1])
