"""Requirements of tests that not every machine meets.

Tests without their requirement are skipped and reported at the end. With CAROUSEL_STRICT=1 they run, and fail.
"""

from __future__ import annotations

import os
import shutil

import pytest

from kernels.cpu.compiler import COMPILERS


def is_strict() -> bool:
    """Return whether skipped tests count as failures."""
    return os.environ.get("CAROUSEL_STRICT", "") not in ("", "0")


def _any_program(description: str, *programs: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_strict() and not any(map(shutil.which, programs)), reason=f"needs {description}")


a_compiler = _any_program("a C++ compiler", *COMPILERS)
curl = _any_program("curl", "curl")
