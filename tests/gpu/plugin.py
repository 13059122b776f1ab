"""`pytest -p tests.gpu.plugin`: all tests find a GPU, which is pretended."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.gpu.machine import Machine, Pace

PROMPT_ROWS = 64  # of a recording at most: the references compute many rows as slowly as they are many

lasting = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    paces = [pace.value for pace in Pace]
    parser.addoption("--gpu-pace", choices=paces, default=Pace.AT_LAST.value, help="when it does its work")
    parser.addoption("--gpu-kernels", choices=["triton", "reference"], default="triton", help="of engines")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before one of them looks for a device."""
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.gpu import kernels
    from tests.gpu.cuda import pretended

    asked = early_config.known_args_namespace
    lasting.enter_context(pretended(Machine(Pace(asked.gpu_pace))))
    if asked.gpu_kernels == "reference":
        patching = lasting.enter_context(pytest.MonkeyPatch.context())
        patching.setattr("engine.build.load_kernels", kernels.load)
        patching.setattr("engine.execution.graphs.PROMPT_ROWS", PROMPT_ROWS)


def pytest_unconfigure() -> None:
    lasting.close()
