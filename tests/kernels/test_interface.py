"""Choice of a back end by device, and the cost of importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from kernels.load import load
from tests import requirements

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> None:
    """Run code in a new interpreter in the checkout, and assert that it succeeds."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


@requirements.a_compiler
def test_compiled_kernels_serve_a_cpu_and_the_references_all_else():
    """C++ serves float32 and bfloat16 on a CPU; torch serves other dtypes, and is used on request."""
    from kernels.cpu.backend import CpuKernels
    from kernels.reference.backend import ReferenceKernels

    cpu = torch.device("cpu")
    assert type(load(cpu, torch.float32)) is CpuKernels
    assert type(load(cpu, torch.bfloat16)) is CpuKernels
    assert type(load(cpu, torch.float16)) is ReferenceKernels
    assert type(load(cpu)) is ReferenceKernels
    assert type(load(cpu, torch.float32, "torch")) is ReferenceKernels


def test_triton_is_imported_for_its_back_end_only():
    """Choosing a back end for a CPU imports no Triton kernel; torch itself may import Triton."""
    run(
        "import sys, torch\n"
        "before = {name for name in sys.modules if name.split('.')[0] == 'triton'}\n"
        "from kernels.load import load\n"
        "load(torch.device('cpu')), load(torch.device('cpu'), torch.float32)\n"
        "after = {name for name in sys.modules if name.split('.')[0] == 'triton'}\n"
        "assert after == before and 'kernels.triton.backend' not in sys.modules\n"
    )


@requirements.a_compiler
def test_all_back_ends_have_the_same_operations():
    """Every operation of the protocol exists in all back ends, with the same parameters in the same order."""
    import inspect

    from kernels.cpu.backend import CpuKernels
    from kernels.interface import Kernels
    from kernels.reference.backend import ReferenceKernels
    from kernels.triton.backend import TritonKernels

    names = [name for name in vars(Kernels) if not name.startswith("_")]
    assert len(names) == 35
    for name in names:
        if isinstance(vars(Kernels)[name], property) or name == "set_threads":
            continue
        expected = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
        for backend in (TritonKernels(), CpuKernels(), ReferenceKernels()):
            assert list(inspect.signature(getattr(backend, name)).parameters) == expected, (name, backend)
