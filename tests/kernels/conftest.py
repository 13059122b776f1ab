"""Fixtures for the kernel back ends; without a CUDA device Triton's kernels run in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kernels.interface import Kernels
from tests.requirements import is_strict

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", autouse=True)
def patch_once() -> Iterator[None]:
    """Patch Triton's language once per function. The interpreter searches its whole language for replacements at each
    launch, and again at each call of a device function, which takes half of its time. Replacements are never undone, so
    once per function suffices."""
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


@pytest.fixture
def separate_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply each row separately in the interpreter. A matrix unit sums a row alike in all positions, but numpy does
    not on every processor (OpenBLAS on an EPYC)."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    def create_dot(_: Any, a: Any, b: Any, to: Any, *__: Any) -> interpreter.TensorHandle:
        products = np.stack([np.matmul(row, b.data, dtype=to.data.dtype) for row in a.data])
        return interpreter.TensorHandle(products + to.data, to.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def half_precision() -> torch.dtype:
    """Return bfloat16, or float16 in Triton's interpreter, which cannot multiply bfloat16."""
    return torch.float16 if os.environ.get("TRITON_INTERPRET") == "1" else torch.bfloat16


def cpu_kernels(allow_bf16: bool = False) -> Kernels:
    """Return the compiled CPU kernels. Without a compiler the test is skipped, or fails in strict mode."""
    from kernels.cpu.backend import CpuKernels
    from kernels.cpu.compiler import CompileError

    try:
        return CpuKernels(allow_bf16)
    except CompileError as error:
        if is_strict():
            raise
        pytest.skip(f"needs a C++ compiler: {error}")


def attention_rounds() -> bool:
    """Return whether compiled kernels round the operands of attention where rounding is allowed. They do on processors
    that multiply pairs of bfloat16 faster than floats and have no matrix unit."""
    from kernels.cpu.compiler import CompileError
    from kernels.cpu.linear import layouts
    from kernels.cpu.structs import Layout

    try:
        here = layouts(torch.bfloat16, allow_bf16_activations=True)
    except CompileError:
        return False
    return Layout.BFLOAT16_PAIRS in here and Layout.BFLOAT16_TILES not in here


@pytest.fixture(params=["reference", "cpu", "triton"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Return each back end in turn."""
    if request.param == "triton":
        from kernels.triton.backend import TritonKernels

        return TritonKernels()
    if request.param == "cpu":
        if DEVICE.type != "cpu":
            pytest.skip("on a GPU machine the tensors are on the GPU")
        return cpu_kernels()
    from kernels.reference.backend import ReferenceKernels

    return ReferenceKernels()


@pytest.fixture
def triton_kernels() -> Kernels:
    from kernels.triton.backend import TritonKernels

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
    """Use one thread: tiny tensors gain nothing from more, and spinning threads are slow on shared cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
