"""Every Triton kernel compiles to machine code for an H100, which needs no GPU: the interpreter accepts more than
that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = [
    "_rms_norm_kernel",
    "_silu_mul_kernel",
    "_rope_and_cache_kernel",
    "_write_cache_kernel",
    "_split_kernel",
    "_combine_kernel",
    "_prefill_kernel",
    "_linear_kernel",
    "_join_kernel",
    "_slice_kernel",
    "_sample_kernel",
]


@pytest.fixture(scope="module")
def cubin_sizes() -> dict[str, int]:
    """Bytes of machine code by kernel, from a process where Triton's interpreter is off."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_all"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    sizes: dict[str, int] = json.loads(result.stdout)
    return sizes


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_compiles_for_sm_90(cubin_sizes: dict[str, int], kernel: str):
    """bfloat16, head size 80, all optional parts on."""
    assert cubin_sizes[kernel] > 1000


def test_no_kernel_is_left_out(cubin_sizes: dict[str, int]):
    """The list above names every kernel in the package."""
    sources = "\n".join(file.read_text() for file in (ROOT / "kernels").glob("*.py"))
    names = {line.split("(")[0].removeprefix("def ") for line in sources.splitlines() if line.startswith("def _")}
    assert {name for name in names if name.endswith("_kernel")} == set(KERNELS) == set(cubin_sizes)
