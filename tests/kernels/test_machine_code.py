"""The kernels as they are compiled for an H100: tests of this folder again, with every launch run as PTX on the CPU.

The interpreter knows nothing of a kernel's threads, of what they exchange and when, nor of the tensors' ends; and it
multiplies no bfloat16. `tests.ptx` does.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.kernels.test_compile import KERNELS
from tests.other_pytest import count_passed, run_pytest

# Some of each file: every kernel, every branch of it. Files of a part are loaded by one process.
CHOSEN = {
    "attention": {
        "kernels/test_attention.py": [
            "decode_attention_equals_naive[triton-three heads to one]",
            "decode_attention_equals_naive[triton-head size 80]",
            "decode_attention_equals_naive[triton-more heads than a tile has rows]",
            "decode_attention_equals_naive[triton-window of 5]",
            "decode_attention_equals_naive[triton-window over splits]",
            "decode_attention_equals_naive[triton-more splits than are combined at a time]",
            "decode_attention_equals_naive[triton-a window, more rows than few]",
            "prefill_attention_equals_naive[triton-three heads to one]",
            "prefill_attention_equals_naive[triton-window of 5]",
            "prefill_attention_equals_naive[triton-a window over pages of four blocks]",
            "tiles_named_by_a_table_say_what_chunks_say[triton-pages that do not divide a tile]",
            "a_query_says_the_same_bits_in_every_tile[0]",
            "for_a_row_without_context_nothing_is_written[triton]",
            "one_plan_serves_every_layer",
            "how_many_programs_share_the_splits_changes_no_bit[1-0]",
            "half_precision_attention_stays_close[triton]",
            "attention_in_bfloat16_stays_close",
        ],
    },
    "the rest": {
        "kernels/test_few_rows.py": [
            "what_stands_around_a_matrix_is_what_it_is_alone[triton-256-64-3-True]",
            "few_rows_are_multiplied_as_float64_says[24-40-8-dtype1]",
            "few_rows_are_multiplied_as_float64_says[576-130-5-dtype1]",
        ],
        "kernels/test_norm_and_gate.py": [
            f"{name}_equals_its_formula[triton-7-1025-dtype{number}]"
            for name in ("rms_norm", "silu_mul")
            for number in (0, 1)
        ],
        "kernels/test_rope_and_cache.py": [
            "rotation_norm_and_write[triton-7-6-2-80-16-qk-norm-views of one projection]",
            "rotation_norm_and_write[triton-7-6-2-80-16-no norm-separate tensors]",
            "write_cache_stores_what_it_is_given[triton]",
        ],
        "kernels/test_decode_step.py": [
            "a_row_is_its_slot[triton-301]",
            "a_row_of_a_prompt_is_the_token_it_is_told[triton]",
            "a_slot_is_sampled_as_its_parameters_say_and_advances[triton-order0-True]",
            "a_slot_is_sampled_as_its_parameters_say_and_advances[triton-order2-False]",
        ],
        "kernels/test_sample.py": [
            "all_back_ends_sample_the_same_tokens[triton]",
            "half_precision_logits_are_sampled_as_in_float32[triton-dtype0]",
            "a_row_with_nan_is_broken_and_nobody_else_is[triton-1.0-filtered-last-1.0]",
        ],
        "kernels/test_invariant.py": [
            "an_invariant_layer_computes_x_times_w_plus_b[2304-96-dtype1]",
            "an_invariant_layer_computes_x_times_w_plus_b[24-40-dtype1]",
        ],
        "ptx/broken.py": [
            "a_race_between_warps_is_told",
            "what_is_not_waited_for_is_not_there",
            "a_kernel_that_does_not_wait_for_its_turn_is_told",
            "reading_behind_a_tensor_is_told",
            "writing_behind_a_tensor_is_told",
        ],
    },
}


@cache
def run(part: str) -> str:
    """What pytest says of one part, whose tests it must all find. Without devices: their memory is not the CPU's."""
    tests = [f"tests/{file}::test_{name}" for file, names in CHOSEN[part].items() for name in names]
    return run_pytest(["-p", "tests.ptx.plugin", *tests], CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET=None)


@pytest.mark.parametrize("part", CHOSEN)
def test_kernels_as_machine_code_pass_their_tests(part: str):
    """All that are chosen, and none is left out."""
    assert count_passed(run(part)) >= sum(map(len, CHOSEN[part].values()))


def test_every_kernel_runs_as_machine_code():
    """The tests above reach all that a step is made of."""
    ran = [name for part in CHOSEN for name in " ".join(re.findall(r"ran as PTX: (.*)", run(part))).split()]
    assert set(KERNELS) <= set(ran)
