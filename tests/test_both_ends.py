"""A suite that is run from both of its ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.subprocess_pytest import ROOT

SUITE = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    yield "opened"

@pytest.mark.parametrize("number", range(12))
def test_it(number, opened):
    while number == 5 and "11 " not in Path("who").read_text():
        time.sleep(0.01)  # until there is a second one
    assert number != 1 and number != 10, f"{number} it is"
    if number == 9:
        pytest.skip("nine")
    with Path("who").open("a") as file:
        file.write(f"{number} {os.getpid()}\\n")

@pytest.fixture
def broken():
    yield
    raise ValueError("at its end")

def test_that_ends_badly(broken):
    pass
"""

DYING = """
import os, time
from pathlib import Path

def test_first():
    while not Path("begun").exists():
        time.sleep(0.01)

def test_second():
    pass

def test_last():
    Path("begun").touch()
    os._exit(3)
"""


def run(folder: Path, suite: str) -> str:
    (folder / "test_some.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-p", "tests.both_ends", "-p", "no:cacheprovider", "-rA", "test_some.py"]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("suite")
    return run(folder, SUITE), folder


def test_each_test_is_run_once_and_by_both(told: tuple[str, Path]):
    """From the first on by one process, from the last on by the other."""
    said, folder = told
    ran = dict(line.split() for line in (folder / "who").read_text().splitlines())
    assert sorted(map(int, ran)) == [0, *range(2, 9), 11], said
    assert len(set(ran.values())) == 2
    assert ran["0"] == ran["2"] != ran["11"]


def test_what_came_of_each_is_said_as_ever(told: tuple[str, Path]):
    """Who ran it makes no difference: failures with their reasons, skips, errors of a fixture."""
    said = told[0]
    assert re.search(r"2 failed, 10 passed, 1 skipped, 1 error in", said), said
    for number in (1, 10):
        assert f"FAILED test_some.py::test_it[{number}] - AssertionError: {number} it is" in said
    assert "nine" in said
    assert "ERROR test_some.py::test_that_ends_badly - ValueError: at its end" in said
    places = [said.index(f"PASSED test_some.py::test_it[{number}]") for number in (0, 2, 8, 11)]
    assert places == sorted(places)


def test_a_test_that_ends_its_process_fails_and_no_other(tmp_path: Path):
    """The second process's: the first runs what is left."""
    said = run(tmp_path, DYING)
    assert "FAILED test_some.py::test_last - the process that ran it has ended" in said
    assert re.search(r"1 failed, 2 passed in", said), said
