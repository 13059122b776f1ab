"""What tests need of a machine that not every one has. Where it is missing they are left out, which is said at the end,
unless nothing may be left out: with CAROUSEL_STRICT=1 they run, and fail.
"""

from __future__ import annotations

import os
import shutil

import pytest

from kernels.cpu.library import COMPILERS


def is_strict() -> bool:
    """Whether leaving tests out is a failure."""
    return os.environ.get("CAROUSEL_STRICT", "") not in ("", "0")


def _one_of(what: str, *programs: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not is_strict() and not any(map(shutil.which, programs)), reason=f"needs {what}")


a_compiler = _one_of("a C++ compiler", *COMPILERS)
curl = _one_of("curl", "curl")
