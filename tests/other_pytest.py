"""Tests that are run by another pytest, whose processor or device is not this one's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from tests.beforehand import run


def run_pytest(arguments: Iterable[str], **environment: str | None) -> str:
    """What it says, where no test fails. environment: what differs from ours; None: it is not there."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    return run(command, **environment)


def count_passed(told: str) -> int:
    """Of tests that have all passed, with none left out."""
    passed = re.fullmatch(r"(\d+) passed in .*", told.splitlines()[-1])
    assert passed, told[-4000:]
    return int(passed[1])
