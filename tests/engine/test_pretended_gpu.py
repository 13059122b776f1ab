"""What torch is told to do on a GPU, without one: tests for devices, on one that is pretended (docs/decisions/0026)."""

from __future__ import annotations

import pytest
import torch

from tests import needs
from tests.other_pytest import count_passed, run_pytest

ON_DEVICE = "tests/engine/test_on_device.py::test_"
KERNELS = "tests/kernels/test_"
# Options of the plugin, and tests. Those that need the same bits in bfloat16 from torch's references are left out, and
# of the kernels' it is only asked what they give them on a device.
CHOSEN = {
    "as late as can be": (
        ["--gpu-pace", "at-last", "--gpu-kernels", "reference"],
        [
            f"{ON_DEVICE}a_device_and_a_cpu_agree_on_every_log_probability",
            f"{ON_DEVICE}a_recorded_step_computes_what_single_operations_compute[more2-options0]",
            f"{ON_DEVICE}a_device_runs_dry_when_nothing_is_told_to_it_in_time",
            f"{ON_DEVICE}nothing_in_a_launch_waits_for_the_device",
        ],
    ),
    "at any time": (
        ["--gpu-pace", "by-chance", "--gpu-kernels", "reference"],
        [f"{ON_DEVICE}a_swap_changes_no_text_on_a_device[page_by_page]"],
    ),
    "kernels": (
        ["--gpu-pace", "at-last", "--gpu-kernels", "triton"],
        [
            f"{KERNELS}attention.py::test_decode_attention_equals_naive[triton-three heads to one]",
            f"{KERNELS}attention.py::test_prefill_attention_equals_naive[triton-three heads to one]",
            f"{KERNELS}attention.py::test_one_plan_serves_every_layer",
            f"{KERNELS}decode_step.py::test_a_row_is_its_slot[triton-301]",
            f"{KERNELS}sample.py::test_all_back_ends_sample_the_same_tokens[triton]",
            f"{KERNELS}few_rows.py::test_few_rows_are_multiplied_as_float64_says[24-40-8-dtype1]",
        ],
    ),
}


def run(part: str) -> str:
    """What pytest says of one part. Without real devices."""
    options, tests = CHOSEN[part]
    return run_pytest(["-p", "tests.gpu.plugin", *options, *tests], CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="1")


@needs.a_compiler
@pytest.mark.skipif(torch.cuda.is_available(), reason="a real device is asked itself")
@pytest.mark.parametrize("part", CHOSEN)
def test_a_pretended_device_is_told_what_a_device_can_do(part: str):
    """All that are chosen pass, and none is left out."""
    assert count_passed(run(part)) == len(CHOSEN[part][1])
