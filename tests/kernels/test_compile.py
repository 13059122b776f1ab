"""Every Triton kernel compiles to machine code for an H100, which needs no GPU: the interpreter accepts more than
that.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kernels import decode_attention
from kernels.chip import SHARED_BYTES
from tests.other_pytest import run

ROOT = Path(__file__).resolve().parents[2]
KERNELS = [
    "_rms_norm_kernel",
    "_few_rows_kernel",
    "_silu_mul_kernel",
    "_rope_and_cache_kernel",
    "_write_cache_kernel",
    "_list_kernel",
    "_decode_kernel",
    "_prefill_kernel",
    "_linear_kernel",
    "_join_kernel",
    "_slice_kernel",
    "_weigh_kernel",
    "_kept_kernel",
    "_sample_kernel",
    "_gather_slots_kernel",
]


EARLY = {
    "_rms_norm_kernel",
    "_few_rows_kernel",
    "_silu_mul_kernel",
    "_rope_and_cache_kernel",
    "_decode_kernel",
    "_slice_kernel",
    "_weigh_kernel",
    "_kept_kernel",
    "_sample_kernel",
}

# Of a model, or of a layer of it. Of anything else a value that was not there before would be compiled for anew, while
# people wait.
FIXED = {
    "q_stride",
    "k_stride",
    "v_stride",
    "x_stride",
    "page_rows",
    "window",
    "N",
    "K",
    "V",
    "groups",
    "slots_stride",
    "nobody",
}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return what `compile_all` prints, in a process where Triton's interpreter is off."""
    command = [sys.executable, "-m", "tests.kernels.compile_all"]
    printed: dict[str, Any] = json.loads(run(command, TRITON_INTERPRET="0", TRITON_DEFAULT_FP_FUSION="1"))
    return printed


@pytest.fixture(scope="module")
def compiled(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of each kernel."""
    kernels: dict[str, Any] = results["kernels"]
    return kernels


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_compiles_for_sm_90(compiled: dict[str, Any], kernel: str):
    """bfloat16 and float32, heads of 64 and 128, all optional parts on; its shared memory is there on the device."""
    assert compiled[kernel]["size"] > 1000
    assert compiled[kernel]["shared"] <= SHARED_BYTES[90]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_has_registers_for_what_it_computes(compiled: dict[str, Any], kernel: str):
    """But for a few numbers: where they are kept in memory instead, it waits for that."""
    assert compiled[kernel]["spilled"] <= 32  # bytes


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_begins_early_waits_before_it_writes(compiled: dict[str, Any], kernel: str):
    """The kernel before it may still be reading that. What it reads too soon the emulation of PTX tells."""
    assert set(compiled[kernel]["waits"]) == {True if kernel in EARLY else None}


def test_no_kernel_is_left_out(compiled: dict[str, Any]):
    """The list above names every kernel in the package."""
    sources = "\n".join(file.read_text() for file in (ROOT / "kernels").glob("*.py"))
    names = {line.split("(")[0].removeprefix("def ") for line in sources.splitlines() if line.startswith("def _")}
    assert {name for name in names if name.endswith("_kernel")} == set(KERNELS) == set(compiled)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_compiled_for_no_number_that_depends_on_the_batch(compiled: dict[str, Any], kernel: str):
    """Serving compiles nothing that the warm-up did not."""
    assert set(compiled[kernel]["specialised"]) <= FIXED


def test_attention_has_room_on_every_supported_gpu(results: dict[str, Any]):
    """Heads of 128 and 256, in bfloat16 and float32, on cards with 99, 163 and 227 KiB of shared memory; heads that
    have no room are refused at the start."""
    sizes = {"*bf16": 2, "*fp32": 4}
    without_room = {(one["dtype"], one["capability"], one["head_dim"]) for one in results["over"]}
    refused = {
        (dtype, capability, head_dim)
        for dtype, (capability, shared), head_dim in product(sizes, SHARED_BYTES.items(), (128, 256))
        if head_dim > decode_attention.max_head_dim(sizes[dtype], shared)
    }
    assert without_room == refused == {("*fp32", 89, 256)}
