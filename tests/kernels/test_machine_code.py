"""Kernels compiled for an H100: tests of this folder run again, with every launch executed as PTX on the CPU.

The interpreter does not model a kernel's threads, their data exchange, or the bounds of tensors, and cannot multiply
bfloat16. `tests.ptx` does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernels.test_compile import KERNELS
from tests.shared_results import once_per_run
from tests.subprocess_pytest import count_passed, run_pytest

pytestmark = pytest.mark.emulated

# Some tests of each file, which together cover every kernel and branch. One process runs all files of a group.
SELECTED = {
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
            "tiles_of_a_table_equal_chunks[triton-pages that do not divide a tile]",
            "a_query_has_the_same_bits_in_every_tile[0]",
            "a_row_without_context_is_not_written[triton]",
            "one_plan_serves_every_layer",
            "the_number_of_programs_changes_no_bit[1-0]",
            "half_precision_attention_stays_close[triton]",
            "attention_in_bfloat16_stays_close",
        ],
    },
    "the rest": {
        "kernels/test_skinny_gemm.py": [
            "fused_operations_equal_separate_ones[triton-256-64-3-True]",
            "products_of_few_rows_agree_with_float64[24-40-8-dtype1]",
            "products_of_few_rows_agree_with_float64[576-130-5-dtype1]",
        ],
        "kernels/test_quantized_gpu.py": [
            *(f"weights_have_the_bits_of_the_reference[dtype1-{name}]" for name in ("Q5_K", "GPTQ", "MXFP4")),
            *(
                f"a_product_of_few_rows_has_the_bits_of_the_dense_one[dtype1-{name}]"
                for name in ("Q4_0", "Q4_K", "FP8 in blocks")
            ),
        ],
        "kernels/test_norm_and_gate.py": [
            f"{name}_equals_its_formula[triton-7-1025-dtype{number}]"
            for name in ("rms_norm", "silu_mul")
            for number in (0, 1)
        ],
        "kernels/test_rope_and_cache.py": [
            "rotation_norm_and_write[triton-7-6-2-80-16-qk-norm-views of one projection]",
            "rotation_norm_and_write[triton-7-6-2-80-16-no norm-separate tensors]",
            "write_cache_stores_its_input[triton]",
        ],
        "kernels/test_decode_step.py": [
            "a_row_is_its_slot[triton-301]",
            "a_row_of_a_prompt_has_its_given_token[triton]",
            "a_slot_is_sampled_with_its_parameters_and_advances[triton-order0-True]",
            "a_slot_is_sampled_with_its_parameters_and_advances[triton-order2-False]",
            "a_row_of_a_draft_follows_its_slots_last_token[triton]",
            "a_slot_advances_by_its_drafts_that_are_right[triton-order0-True]",
            "a_slot_advances_by_its_drafts_that_are_right[triton-order1-False]",
            "a_row_without_a_draft_changes_nothing[triton]",
        ],
        "kernels/test_kept_tokens.py": [
            "tokens_that_count_are_appended[triton-False]",
            "tokens_that_count_are_appended[triton-True]",
            "a_token_after_an_absent_draft_does_not_count[triton]",
        ],
        "kernels/test_draft_slots.py": [
            "drafts_follow_the_longest_match[triton-2]",
            "drafts_follow_the_longest_match[triton-20]",
            "the_number_of_programs_changes_no_draft[1]",
            "the_number_of_programs_changes_no_draft[1024]",
            "a_slot_without_a_limit_has_no_drafts[triton]",
        ],
        "kernels/test_sample.py": [
            "all_back_ends_sample_the_same_tokens[triton]",
            "all_back_ends_keep_the_same_tokens_within_n_standard_deviations[triton-4096]",
            "half_precision_logits_are_sampled_as_in_float32[triton-dtype0]",
            "a_row_with_nan_is_broken_and_no_other_is[triton-1.0-filtered-last-1.0]",
        ],
        "kernels/test_mask_logits.py": [
            "the_logits_of_masked_slots_are_masked[triton-dtype0-9000]",
            "the_logits_of_masked_slots_are_masked[triton-dtype1-33]",
        ],
        "kernels/test_invariant.py": [
            "an_invariant_layer_computes_x_times_w_plus_b[2304-96-dtype1]",
            "an_invariant_layer_computes_x_times_w_plus_b[24-40-dtype1]",
        ],
        "ptx/broken.py": [
            "a_race_between_warps_is_reported",
            "a_copy_arrives_only_when_it_is_waited_for",
            "a_kernel_that_does_not_wait_for_its_predecessor_is_reported",
            "reading_past_the_end_of_a_tensor_is_reported",
            "writing_past_the_end_of_a_tensor_is_reported",
        ],
    },
}


def run(part: str, base: Path) -> str:
    """Return pytest's output for one group. CUDA devices are hidden, because the emulator needs CPU memory."""
    tests = [f"tests/{file}::test_{name}" for file, names in SELECTED[part].items() for name in names]
    arguments = ["-p", "tests.ptx.plugin", *tests]
    return once_per_run(
        base, f"{part}.txt", lambda: run_pytest(arguments, CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET=None)
    )


@pytest.mark.parametrize("part", SELECTED)
def test_kernels_as_machine_code_pass_their_tests(part: str, tmp_path_factory: pytest.TempPathFactory):
    """All selected tests pass and none is skipped."""
    assert count_passed(run(part, tmp_path_factory.getbasetemp())) >= sum(map(len, SELECTED[part].values()))


def test_every_kernel_runs_as_machine_code(tmp_path_factory: pytest.TempPathFactory):
    """The tests above run every kernel of a step."""
    outputs = [run(part, tmp_path_factory.getbasetemp()) for part in SELECTED]
    ran = [name for output in outputs for name in " ".join(re.findall(r"ran as PTX: (.*)", output)).split()]
    assert set(KERNELS) <= set(ran)
