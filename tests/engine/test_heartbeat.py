"""Heartbeat: a counter in shared memory, incremented during a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.heartbeat import Heartbeat
from engine.types import Request, SamplingParams
from kernels.load import load
from tests.conftest import ROOT
from tests.limits import HANG_SECONDS


def test_another_process_counts_and_this_one_reads():
    """A child process increments the counter through an inherited descriptor."""
    heartbeat = Heartbeat()
    code = "import sys; from engine.heartbeat import Heartbeat; h = Heartbeat(int(sys.argv[1])); h.beat(); h.beat()"
    command = [sys.executable, "-c", code, str(heartbeat.fileno())]
    subprocess.run(command, pass_fds=[heartbeat.fileno()], check=True, timeout=HANG_SECONDS, cwd=ROOT)
    heartbeat.close()
    heartbeat.close()
    assert heartbeat.count == 2


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_one_long_step_counts_many_times(demo: Path, kernels: str):
    """The counter advances at least once per layer, with either kernel implementation."""
    heartbeat = Heartbeat()
    config = EngineConfig(model=str(demo), device="cpu", kernels=kernels, num_pages=64, max_num_batched_tokens=512)
    try:
        engine = build_engine(config, heartbeat=heartbeat)
        engine.submit(Request(id="a", prompt=(5,) * 300, sampling=SamplingParams(max_tokens=2)))
        before = heartbeat.count
        engine.step()
        assert heartbeat.count - before >= json.loads((demo / "config.json").read_text())["num_hidden_layers"]
    finally:
        load(torch.device("cpu"), torch.float32).count_progress(None)
