"""transformers as a baseline: figures reported in time are kept, and it is timed while it generates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import gpu_transformers
from benchmarks.gpu_transformers import Measured
from benchmarks.shapes import TINY
from tests.benchmarks.conftest import CPU
from tests.fakes import TransformersManager


def test_fewer_tokens_than_requested_are_an_error(monkeypatch: pytest.MonkeyPatch):
    """transformers returns partial output after a failure."""
    manager = TransformersManager([2])
    monkeypatch.setattr(gpu_transformers, "_model", lambda shape, device: manager.model)
    with pytest.raises(RuntimeError, match="2 tokens of 6"):
        list(gpu_transformers._run_task(TINY, CPU, [[1], [2]], output=3, runs=1))


def test_transformers_is_timed_while_it_generates(monkeypatch: pytest.MonkeyPatch):
    """Start and stop are not timed, no answer is left over from a previous run, and its choices of implementation are
    reported."""
    manager = TransformersManager(3 * [3, 3])
    monkeypatch.setattr(gpu_transformers, "_model", lambda shape, device: manager.model)
    reported = []
    for line in gpu_transformers._run_task(TINY, CPU, [[1], [2]], output=3, runs=2):
        assert manager.running
        reported.append(line)
    assert not manager.running and not manager.options["continuous_batching_config"].allow_block_sharing
    measured = gpu_transformers._read("\n".join([*reported, ""]).encode())
    assert measured.ways == {
        "attention": "paged|sdpa", "cuda_graphs": [False, True], "async_batching": True, "tokens_of_a_step": 512,
    }  # fmt: skip
    assert len(measured.rates) == 2 and manager.asked == 3 * [([[1], [2]], 3)]


@pytest.mark.parametrize("runs", [0, 2])
def test_rates_reported_before_a_timeout_are_kept(monkeypatch: pytest.MonkeyPatch, runs: int):
    """Rates reported before a timeout count, among any other output; without one the error is a timeout."""
    reported = f'loading: 100%\n{gpu_transformers.WAYS}{{"attention": "eager"}}\n'
    reported += "".join(f"\n{gpu_transformers.RATE}{10.5 * run}\n" for run in range(1, runs + 1))
    reported += f"{gpu_transformers.RATE}99"  # an incomplete line
    body = f"import sys, time; sys.stdout.write({reported!r}); sys.stdout.flush(); time.sleep(60)"
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: run([sys.executable, "-c", body], **more))

    def measured() -> Measured:
        return gpu_transformers.measure(TINY, CPU, [(1,)], 3, 2, timeout=2.0)

    if runs:
        assert measured() == Measured({"attention": "eager"}, [10.5, 21.0])
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            measured()
