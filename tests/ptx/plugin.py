"""`pytest -p tests.ptx.plugin`: compile every Triton kernel for compute capability 9.0 and run its PTX on the CPU. The
names of these kernels are printed at the end."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest

patching = pytest.MonkeyPatch()
ran: set[str] = set()
cache = tempfile.TemporaryDirectory()  # separate, because its kernels have no machine code


def pytest_sessionstart() -> None:
    """Replace launches after tests/conftest.py requests the interpreter and before a test imports a kernel."""
    os.environ.pop("TRITON_INTERPRET", None)
    patching.setenv("TRITON_CACHE_DIR", cache.name)
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from kernels.triton import pdl
    from tests.ptx.launch import Device, launch

    driver.set_active(Device())
    patching.setattr(pdl, "supports_pdl", lambda device: True)
    compile_only = JITFunction.run

    def run(self: JITFunction, *given: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> Any:
        compiled = compile_only(self, *given, grid=grid, warmup=True, **named)
        names = [parameter.name for parameter in self.params]
        arguments = dict(zip(names, given, strict=False)) | {name: named[name] for name in names if name in named}
        launch(compiled, arguments, grid)
        ran.add(self.fn.__name__)
        return compiled

    patching.setattr(JITFunction, "run", run)
    # Machine code is not run here, and takes long to assemble.
    patching.setattr(CUDABackend, "make_cubin", lambda *given: b"")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the names of kernels that ran as PTX."""
    terminalreporter.write_line(f"ran as PTX: {' '.join(sorted(ran))}")


def pytest_unconfigure() -> None:
    """Restore Triton, except for its driver."""
    patching.undo()
    cache.cleanup()
