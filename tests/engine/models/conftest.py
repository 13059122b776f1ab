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
    """Tiny random checkpoints by name, made when first asked for."""
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=["auto", "torch"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """What serves float32 on a CPU: compiled, or where nothing can be compiled."""
    return load(torch.device("cpu"), torch.float32, request.param)


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, checkpoints: Checkpoints) -> Checkpoint:
    """The checkpoint a test is parametrised with, by name."""
    return checkpoints[request.param]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and spinning ones collapse where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
