"""The two calls on a GPU: their commands, the isolation of failures, and both of them on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_parts
from benchmarks.gpu_parts import LIMIT_SECONDS, Part
from tests import conftest
from tests.limits import HANG_SECONDS
from tests.profiles import nightly

ROOT = Path(__file__).resolve().parents[2]
PRINT = "import sys; print(sys.argv[1], flush=True); sys.exit(int(sys.argv[2]))"


def part(name: str, *code: str, limit: float = 30.0, beside: bool = False) -> Part:
    return Part(name, [sys.executable, "-c", *code], limit, beside)


def test_a_part_that_fails_or_hangs_does_not_affect_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A part that ignores the interrupt is killed, with its child processes."""
    monkeypatch.setattr(gpu_parts, "KILL_SECONDS", 0.5)
    child = tmp_path / "child"
    hang = (
        "import signal, subprocess, sys, time, pathlib; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); print('hangs', flush=True); time.sleep(600)"
    )
    parts = [
        part("beside", PRINT, "beside them", "0", beside=True),
        part("fails", PRINT, "of no use", "3"),
        part("hangs", hang, str(child), limit=3.0),
        part("works", PRINT, "of use", "0"),
    ]
    reports: list[list[int | None]] = []
    assert not gpu_parts.run_call(parts, tmp_path, lambda: reports.append([one.status for one in parts]))
    assert [one.status for one in parts] == [0, 3, -9, 0]
    assert (tmp_path / "works.log").read_text() == "of use\n" and (tmp_path / "hangs.log").read_text() == "hangs\n"
    assert reports[0][1:] == [3, None, None], "each outcome is saved immediately"
    stat = Path(f"/proc/{child.read_text()}/stat")
    deadline = time.monotonic() + HANG_SECONDS
    while stat.exists() and stat.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.parametrize("call", gpu_parts.CALLS)
def test_a_call_ends_in_time(call: str):
    """The bound follows from the limits of its parts."""
    parts = gpu_parts.CALLS[call]("python3", Path("out"), True, ())
    assert gpu_parts.longest(parts) <= LIMIT_SECONDS[call]


@pytest.mark.parametrize("call", gpu_parts.CALLS)
def test_no_early_launch_reaches_every_part_that_launches_kernels(call: str):
    """Exceptions are the device tests, which compare both, and the CPU kernels."""
    parts = gpu_parts.CALLS[call]("python3", Path("out"), True, ("--no-early-launch",))
    without = {one.name for one in parts if "--no-early-launch" not in one.command}
    assert without <= {"tests", "cpu-kernels"}


def test_device_tests_exist():
    """A renamed test file would not be run."""
    assert len(gpu_parts.DEVICE_TESTS) > 5 and all((ROOT / file).exists() for file in gpu_parts.DEVICE_TESTS)


def test_make_passes_arguments_on():
    """Both targets pass arguments on unchanged."""
    for call in gpu_parts.CALLS:
        command = ["make", "-n", f"gpu-{call}", "ARGS=--no-early-launch", "OUT=some/where", "GPU_PYTHON=py"]
        printed = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
        ).stdout
        assert f"py -m benchmarks.gpu_parts {call} --out 'some/where' --no-early-launch" in printed


@pytest.mark.slow
@pytest.mark.parametrize("call", ["check", pytest.param("figures", marks=nightly)])
def test_both_calls_run_on_a_cpu(call: str, tmp_path: Path):
    """They use tiny shapes and interpreted kernels, so that mistakes are found without a device."""
    command = [sys.executable, "-m", "benchmarks.gpu_parts", call, "--device", "cpu", "--out", str(tmp_path)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    report = json.loads((tmp_path / f"gpu_{call}.json").read_text())
    assert [one["status"] for one in report["parts"]] == [0] * len(report["parts"])
    assert report["origin"]["commit"] and report["origin"]["longest_seconds"] > 0


@pytest.mark.parametrize(
    ("message", "worker", "real", "ends"),
    [
        ("CUDA error: an illegal memory access was encountered", True, True, True),
        ("Triton Error [CUDA]: misaligned address", True, True, True),
        ("AssertionError: 1 == 2", True, True, False),
        ("CUDA error: an illegal memory access was encountered", False, True, False),  # all tests run in this process
        ("CUDA error: an illegal memory access was encountered", True, False, False),  # the device is emulated
    ],
)
def test_a_worker_that_loses_its_device_exits(monkeypatch: pytest.MonkeyPatch, message, worker, real, ends):
    """Only the xdist worker that ran the test exits."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: real)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    else:
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    conftest.pytest_runtest_logreport(pytest.TestReport("a", ("a", 1, "a"), {}, "failed", message, "call"))
    assert bool(ended) is ends
