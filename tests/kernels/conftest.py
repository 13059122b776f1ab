"""Runs the Triton kernels in Triton's interpreter where there is no CUDA device."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from kernels.interface import Kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Read when a kernel is defined, so it must stand before the first import of the Triton back end.
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(params=["reference", "triton"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Both back ends in turn."""
    if request.param == "triton":
        from kernels.backend import TritonKernels

        return TritonKernels()
    from kernels.reference.backend import ReferenceKernels

    return ReferenceKernels()


@pytest.fixture
def triton_kernels() -> Kernels:
    from kernels.backend import TritonKernels

    return TritonKernels()


@pytest.fixture
def reference_kernels() -> Kernels:
    from kernels.reference.backend import ReferenceKernels

    return ReferenceKernels()


@pytest.fixture
def device() -> torch.device:
    return DEVICE


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and spinning ones collapse where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
