"""`carousel build-kernels`: exit status and one line, in a child process as in an image's build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.kernels.conftest import cpu_kernels


def build(**environment: str) -> tuple[int, list[str]]:
    """Run the command; return its exit status and the lines on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "app", "build-kernels"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stderr.splitlines()


def test_kernels_that_are_in_the_cache_need_no_compiler():
    """The line has the path of the library."""
    cpu_kernels()  # compiles if needed
    status, lines = build(CXX="no-such-compiler")
    assert status == 0 and len(lines) == 1
    assert lines[0].startswith("The CPU kernels are in ") and Path(lines[0].split()[-1]).is_file()


@pytest.mark.parametrize(
    ("environment", "named"),
    [({"CXX": "no-such-compiler"}, "no-such-compiler cannot be run"), ({}, "cannot be kept, so every start")],
    ids=["no compiler", "no folder"],
)
def test_an_image_without_kernels_is_not_built(tmp_path: Path, environment: dict[str, str], named: str):
    """Without a compiler, or without a folder for the library, the status is 1 and one line has the reason."""
    (tmp_path / "file").touch()
    folder = tmp_path if environment else tmp_path / "file"
    status, lines = build(XDG_CACHE_HOME=str(folder), **environment)
    assert status == 1 and len(lines) == 1
    assert named in lines[0]
