"""Device tests run without a GPU, on an emulated one (docs/decisions/0026)."""

from __future__ import annotations

import pytest
import torch

from tests import requirements
from tests.subprocess_pytest import count_passed, run_pytest

pytestmark = pytest.mark.emulated

ON_DEVICE = "tests/engine/test_on_device.py::test_"
KERNELS = "tests/kernels/test_"
# Plugin options and tests. Tests that need bitwise equality in bfloat16 from torch's references are excluded. Kernel
# tests check only their arguments on a device.
SELECTED = {
    "as late as possible": (
        ["--gpu-timing", "lazy", "--gpu-kernels", "reference"],
        [
            f"{ON_DEVICE}a_device_and_a_cpu_agree_on_every_log_probability",
            f"{ON_DEVICE}a_recorded_step_computes_what_single_operations_compute[more2-options0]",
            f"{ON_DEVICE}a_device_is_idle_if_no_work_is_queued_in_time",
            f"{ON_DEVICE}nothing_in_a_launch_waits_for_the_device",
            f"{ON_DEVICE}a_step_with_drafts_does_not_wait_for_the_device[False]",
            f"{ON_DEVICE}a_step_with_drafts_does_not_wait_for_the_device[True]",
            f"{ON_DEVICE}drafts_are_looked_up_without_waiting_for_the_device",
        ],
    ),
    "at any time": (
        ["--gpu-timing", "random", "--gpu-kernels", "reference"],
        [f"{ON_DEVICE}a_swap_changes_no_text_on_a_device[page_by_page]"],
    ),
    "kernels": (
        ["--gpu-timing", "lazy", "--gpu-kernels", "triton"],
        [
            f"{KERNELS}attention.py::test_decode_attention_equals_naive[triton-three heads to one]",
            f"{KERNELS}attention.py::test_prefill_attention_equals_naive[triton-three heads to one]",
            f"{KERNELS}attention.py::test_one_plan_serves_every_layer",
            f"{KERNELS}decode_step.py::test_a_row_is_its_slot[triton-301]",
            f"{KERNELS}draft_slots.py::test_a_slot_without_a_limit_has_no_drafts[triton]",
            f"{KERNELS}kept_tokens.py::test_tokens_that_count_are_appended[triton-True]",
            f"{KERNELS}sample.py::test_all_back_ends_sample_the_same_tokens[triton]",
            f"{KERNELS}skinny_gemm.py::test_products_of_few_rows_agree_with_float64[24-40-8-dtype1]",
        ],
    ),
}


def run(part: str) -> str:
    """Return pytest's output for one group, run without real devices."""
    options, tests = SELECTED[part]
    return run_pytest(["-p", "tests.gpu.plugin", *options, *tests], CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="1")


@requirements.a_compiler
@pytest.mark.skipif(torch.cuda.is_available(), reason="a real device runs these tests")
@pytest.mark.parametrize("part", SELECTED)
def test_device_tests_pass_on_the_emulated_gpu(part: str):
    """All selected tests pass and none is skipped."""
    assert count_passed(run(part)) == len(SELECTED[part][1])
