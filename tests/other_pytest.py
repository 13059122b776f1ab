"""Tests that are run by another pytest, whose processor or device is not this one's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240.0  # that it may take


def run_pytest(arguments: Iterable[str], **environment: str | None) -> str:
    """What it says. environment: what differs from ours; None: it is not there."""
    changed = {name: value for name, value in (os.environ | environment).items() if value is not None}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=ROOT, env=changed, **both, text=True, timeout=SECONDS, check=False).stdout


def count_passed(told: str) -> int:
    """Of tests that have all passed, with none left out."""
    passed = re.fullmatch(r"(\d+) passed in .*", told.splitlines()[-1])
    assert passed, told[-4000:]
    return int(passed[1])
