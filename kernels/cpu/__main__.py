"""`python -m kernels.cpu`: compile the CPU kernels ahead of the first start. Exits with the reason if that fails."""

from __future__ import annotations

import sys

from kernels.cpu.compiler import CompileError
from kernels.cpu.library import load

try:
    load()
except CompileError as error:
    sys.exit(f"The CPU kernels could not be compiled; the server will fall back to torch, which is slower. {error}")
