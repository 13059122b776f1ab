"""`python -m kernels.cpu`: compile the CPU kernels ahead of the first start. Exits with the reason if that fails."""

from __future__ import annotations

import logging
import sys

from kernels.cpu.cache import cache_folder
from kernels.cpu.compiler import CompileError, ignore_progress
from kernels.cpu.library import load_from

logging.basicConfig(level=logging.INFO, format="%(message)s")
try:
    library = load_from(cache_folder(), ignore_progress)
except CompileError as error:
    sys.exit(f"The CPU kernels could not be compiled; the server will fall back to torch, which is slower. {error}")
except OSError as error:
    sys.exit(f"The compiled CPU kernels cannot be kept, so every start of the server will compile them: {error}")
except KeyboardInterrupt:
    sys.exit(130)
logging.getLogger(__name__).info("The CPU kernels are in %s", library._name)
