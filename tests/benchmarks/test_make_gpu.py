"""`make gpu`: what it runs, and what a device that fails costs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests import conftest

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_runs_whatever_the_tests_said(tmp_path: Path):
    """`make gpu` fails in the end when either did, and the results and what tests said go where they are wanted too."""
    python, said, out = tmp_path / "python", tmp_path / "said", tmp_path / "out"
    python.write_text(f'#!/bin/sh\necho "$@" >> {said}\ncase "$2" in pytest) echo 1 failed; exit 1;; esac\n')
    python.chmod(0o755)
    command = ["make", "gpu", f"GPU_PYTHON={python}", f"OUT={out}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0, ended.stderr
    lines = [line for line in said.read_text().splitlines() if not line.startswith("-m pip")]  # of wheels, if any
    assert {line.split()[1] for line in lines[:2]} == {"import", "kernels.cpu"}  # what every worker would wait for
    (tests,) = (line for line in lines if line.startswith("-m pytest"))
    assert "tests/engine/test_on_device.py" in tests and "-o timeout_method=thread" in tests
    assert lines[-1] == f"-m benchmarks.gpu --also-in {out}"
    assert (out / "tests.log").read_text() == "1 failed\n" and "1 failed" in ended.stdout


@pytest.mark.parametrize(
    ("said", "worker", "real", "ends"),
    [
        ("CUDA error: an illegal memory access was encountered", True, True, True),
        ("Triton Error [CUDA]: misaligned address", True, True, True),
        ("AssertionError: 1 == 2", True, True, False),
        ("CUDA error: an illegal memory access was encountered", False, True, False),  # all tests are in this process
        ("CUDA error: an illegal memory access was encountered", True, False, False),  # somebody pretends
    ],
)
def test_a_test_that_loses_its_device_takes_no_others_with_it(
    monkeypatch: pytest.MonkeyPatch, said, worker, real, ends
):
    """Of several processes that share the tests the one that had it ends."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: real)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    else:
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    conftest.pytest_runtest_logreport(pytest.TestReport("a", ("a", 1, "a"), {}, "failed", said, "call"))
    assert bool(ended) is ends


def test_what_make_gpu_runs_is_there():
    """A test file that was renamed would be no test."""
    listed = subprocess.run(["make", "-n", "gpu"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    files = [word for word in listed.stdout.split() if word.startswith("tests/")]
    assert len(files) > 5 and all((ROOT / file).exists() for file in files)
