"""Descriptions of supervised processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.limits import HANG_SECONDS


@pytest.mark.parametrize("module", ["supervised_api", "supervised_engine"])
@pytest.mark.parametrize("written", [b"", b"\x8b\xa5flags"])
def test_a_process_whose_supervisor_dies_while_starting_it_ends_with_one_line(module: str, written: bytes):
    command = (sys.executable, "-m", f"app.cli.{module}")
    done = subprocess.run(command, check=False, input=written, stderr=subprocess.PIPE, cwd=ROOT, timeout=HANG_SECONDS)
    assert done.returncode == 1 and done.stderr == b"carousel: the supervisor of this process has ended\n"
