"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.interface import Kernels
from kernels.load import load
from tests.engine.models.checkpoints import Checkpoint, Checkpoints


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Tiny random checkpoints by name, created on first use."""
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=["auto", "torch"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Kernels for float32 on a CPU: compiled, and the fallback without a compiler."""
    return load(torch.device("cpu"), torch.float32, request.param)


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, checkpoints: Checkpoints) -> Checkpoint:
    """Return the checkpoint with the name that the test is parametrised with."""
    return checkpoints[request.param]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: tiny tensors gain nothing from more, and spinning threads are slow on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
