"""The back ends of the kernels as fixtures; without a CUDA device Triton's kernels run in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernels.interface import Kernels
from tests.needs import is_strict

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", autouse=True)
def patch_once() -> Iterator[None]:
    """Triton's interpreter looks through its whole language for what to replace when a kernel is started, and once more
    for each call of a function inside one: half of all the time it takes. Once for each such function is enough: what
    that replaces nobody puts back."""
    from triton.runtime.interpreter import InterpretedFunction

    call, patched = InterpretedFunction.__call__, set()

    def call_patched(self: InterpretedFunction, *args: Any, **options: Any) -> Any:
        if self in patched:
            return self.rewrite()(*args, **options)
        patched.add(self)
        return call(self, *args, **options)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(InterpretedFunction, "__call__", call_patched)
        yield


def half_precision() -> torch.dtype:
    """bfloat16; float16 in Triton's interpreter, which multiplies no bfloat16."""
    return torch.float16 if os.environ.get("TRITON_INTERPRET") == "1" else torch.bfloat16


def cpu_kernels(may_round: bool = False) -> Kernels:
    """The compiled ones; where nothing can be compiled their tests are left out, unless nothing may be."""
    from kernels.cpu.backend import CpuKernels
    from kernels.cpu.library import CannotCompile

    try:
        return CpuKernels(may_round)
    except CannotCompile as error:
        if is_strict():
            raise
        pytest.skip(f"needs a C++ compiler: {error}")


def attention_rounds() -> bool:
    """Whether the compiled ones round what attention multiplies, where they may: on processors that multiply pairs of
    bfloat16 faster than floats and have no matrix unit."""
    from kernels.cpu.library import CannotCompile
    from kernels.cpu.linear import layouts
    from kernels.cpu.structs import Layout

    try:
        here = layouts(torch.bfloat16, may_round=True)
    except CannotCompile:
        return False
    return Layout.BFLOAT16_PAIRS in here and Layout.BFLOAT16_TILES not in here


@pytest.fixture(params=["reference", "cpu", "triton"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """All back ends in turn."""
    if request.param == "triton":
        from kernels.backend import TritonKernels

        return TritonKernels()
    if request.param == "cpu":
        if DEVICE.type != "cpu":
            pytest.skip("on a GPU machine the tensors are on the GPU")
        return cpu_kernels()
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
