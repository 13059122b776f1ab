"""`python -m kernels.cpu`: compile now what the first start would compile. Fails with the reason where it cannot be."""

from __future__ import annotations

import sys

from kernels.cpu.library import CannotCompile, load

try:
    load()
except CannotCompile as error:
    sys.exit(f"The CPU kernels cannot be compiled, so torch will compute, which is slower: {error}")
