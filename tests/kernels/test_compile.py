"""Every Triton kernel compiles to machine code for an H100, without a GPU; the interpreter accepts more programs than
the compiler."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kernels.triton import decode_attention
from kernels.triton.device_limits import SHARED_BYTES
from tests.kernels.compile_all import CAPABILITIES, HEAD_DIMS
from tests.shared_results import once_per_run
from tests.subprocess_pytest import run

pytestmark = pytest.mark.emulated

ROOT = Path(__file__).resolve().parents[2]
KERNELS = [
    "_rms_norm_kernel",
    "_skinny_gemm_kernel",
    "_dequantize_kernel",
    "_silu_mul_kernel",
    "_rope_and_cache_kernel",
    "_write_cache_kernel",
    "_list_kernel",
    "_decode_kernel",
    "_prefill_kernel",
    "_linear_kernel",
    "_join_kernel",
    "_mask_slots_kernel",
    "_slice_kernel",
    "_weigh_kernel",
    "_kept_kernel",
    "_sample_kernel",
    "_accept_kernel",
    "_gather_slots_kernel",
    "_search_kernel",
    "_draft_kernel",
]


EARLY_LAUNCHED = {
    "_rms_norm_kernel",
    "_skinny_gemm_kernel",
    "_silu_mul_kernel",
    "_rope_and_cache_kernel",
    "_decode_kernel",
    "_mask_slots_kernel",
    "_slice_kernel",
    "_weigh_kernel",
    "_kept_kernel",
    "_sample_kernel",
    "_accept_kernel",
    "_draft_kernel",
}

# Values of a model or layer. Specialisation on any other argument would compile a kernel during serving when a new
# value occurs.
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
    "padding_slot",
}


def compile_all() -> str:
    """Return the output of `compile_all` from a process where Triton's interpreter is disabled."""
    return run([sys.executable, "-m", "tests.kernels.compile_all"], TRITON_INTERPRET="0", TRITON_DEFAULT_FP_FUSION="1")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of all kernels."""
    printed: dict[str, Any] = json.loads(once_per_run(tmp_path_factory.getbasetemp(), "compiled.json", compile_all))
    return printed


@pytest.fixture(scope="module")
def compiled(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of each kernel."""
    kernels: dict[str, Any] = results["kernels"]
    return kernels


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_compiles_for_sm_90(compiled: dict[str, Any], kernel: str):
    """It compiles for bfloat16 and float32, heads of 64 and 128, with all optional parts, and its shared memory fits on
    the device."""
    assert compiled[kernel]["size"] > 1000
    assert compiled[kernel]["shared"] <= SHARED_BYTES[90]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_hardly_spills_registers(compiled: dict[str, Any], kernel: str):
    """At most a few registers spill, because a kernel waits for spilled values in memory."""
    assert compiled[kernel]["spilled"] <= 32  # bytes


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_early_launched_kernel_waits_before_it_writes(compiled: dict[str, Any], kernel: str):
    """The previous kernel may still read that memory. The PTX emulator finds reads before griddepcontrol.wait."""
    assert set(compiled[kernel]["waits"]) == {True if kernel in EARLY_LAUNCHED else None}


def test_no_kernel_is_left_out(compiled: dict[str, Any]):
    """The list above names every kernel in the package."""
    sources = "\n".join(file.read_text() for file in (ROOT / "kernels" / "triton").glob("*.py"))
    names = {line.split("(")[0].removeprefix("def ") for line in sources.splitlines() if line.startswith("def _")}
    assert {name for name in names if name.endswith("_kernel")} == set(KERNELS) == set(compiled)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_not_specialised_on_a_number_that_depends_on_the_batch(compiled: dict[str, Any], kernel: str):
    """Serving compiles nothing that warm-up did not."""
    assert set(compiled[kernel]["specialised"]) <= FIXED


def test_attention_fits_into_shared_memory_of_every_supported_gpu(results: dict[str, Any]):
    """Heads of 128 and 256, in bfloat16 and float32, fit on cards with 99, 163 and 227 KiB of shared memory, or are
    refused at startup."""
    sizes = {"*bf16": 2, "*fp32": 4}
    too_large = {(one["dtype"], one["capability"], one["head_dim"]) for one in results["over"]}
    refused = {
        (dtype, capability, head_dim)
        for dtype, capability, head_dim in product(sizes, CAPABILITIES, HEAD_DIMS)
        if head_dim > decode_attention.max_head_dim(sizes[dtype], SHARED_BYTES[capability])
    }
    assert too_large == refused == {("*fp32", 89, 256)}
