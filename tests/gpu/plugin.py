"""`pytest -p tests.gpu.plugin`: run all tests with an emulated GPU."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.gpu.machine import Machine, Timing

MAX_PROMPT_ROWS = 64  # maximum of a recording: time of the reference kernels grows with rows

active = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    timings = [timing.value for timing in Timing]
    parser.addoption(
        "--gpu-timing", choices=timings, default=Timing.LAZY.value, help="when the device executes queued work"
    )
    parser.addoption(
        "--gpu-kernels", choices=["triton", "reference"], default="triton", help="kernels that engines use"
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the emulated GPU before a conftest looks for a device."""
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.gpu import kernels
    from tests.gpu.cuda import emulated_gpu

    options = early_config.known_args_namespace
    active.enter_context(emulated_gpu(Machine(Timing(options.gpu_timing))))
    if options.gpu_kernels == "reference":
        patching = active.enter_context(pytest.MonkeyPatch.context())
        patching.setattr("engine.build.load_kernels", kernels.load)
        patching.setattr("engine.execution.graphs.MAX_PROMPT_ROWS", MAX_PROMPT_ROWS)


def pytest_unconfigure() -> None:
    active.close()
