"""Fused steps equal the same steps with single operations: tokens, slots, keys and values."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.execution.models import load_model
from engine.model_files.open_model import open_model
from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.cpu.backend import CpuKernels
from tests import requirements
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.histories import (
    FULL_SAMPLER,
    NAN_TOKEN,
    PLAIN,
    Histories,
    SingleOperations,
    make_runner,
    steps_with_masks,
    to_bytes,
)
from tests.profiles import examples

pytestmark = requirements.a_compiler

STEPS = examples(500)  # of a random history


@pytest.mark.parametrize(
    ("dtype", "allow_bf16"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
)
@pytest.mark.parametrize(
    ("sampling_choices", "is_constrained"),
    [(PLAIN, False), (PLAIN * 4 + FULL_SAMPLER, False), (PLAIN * 4 + FULL_SAMPLER, True)],
    ids=["plain", "full sampler", "constrained"],
)
@pytest.mark.parametrize(
    "checkpoint",
    ["llama", "llama-odd", "mistral-window", "qwen3", "smollm3-window", "phi3-three-quarters", "granite"],
    indirect=True,
)
def test_a_fused_step_equals_its_single_operations(
    checkpoint: Checkpoint,
    sampling_choices: tuple[SamplingParams, ...],
    is_constrained: bool,
    dtype: torch.dtype,
    allow_bf16: bool,
):
    """Decode rows and chunks in any batch, some with NaN, some with the full sampler, some with masks, have equal
    tokens, slot lengths, last tokens and cache bits."""
    model = load_model(
        open_model(checkpoint.path), dtype, torch.device("cpu"), lambda *_: None, kernels=CpuKernels(allow_bf16)
    )
    with torch.inference_mode():
        model._weights.embedding.table[NAN_TOKEN] = math.nan
    runners = [make_runner(model, kernels, dtype) for kernels in (CpuKernels(allow_bf16), SingleOperations(allow_bf16))]
    assert runners[0]._fused_step and not runners[1]._fused_step
    histories = Histories(random.Random(len(sampling_choices)), sampling_choices, is_constrained=is_constrained)
    broken = tokens = 0
    for _ in range(STEPS):
        batch = histories.next()
        outcome, expected = (runner.launch(batch)() for runner in runners)
        assert repr(outcome) == repr(expected)  # a NaN is not equal to itself
        one, other = runners
        assert np.array_equal(one._slots.lengths, other._slots.lengths)
        assert torch.equal(one._last_tokens, other._last_tokens)
        assert np.array_equal(to_bytes(one._cache.data), to_bytes(other._cache.data))
        histories.take(batch, outcome)
        tokens += len(outcome.sampled)
        broken += sum(outcome.has_nan) + sum(sampled.token_id < 0 for sampled in outcome.sampled)
    assert broken > STEPS / 50 and tokens > STEPS
    assert [runner.fused_steps for runner in runners] == [STEPS, 0]


def test_a_fused_step_masks_tokens_itself(checkpoints):
    """Only a row without an allowed token is sampled from logits that the step returns."""
    runner = make_runner(checkpoints["llama"].load(), CpuKernels(), torch.float32)
    masked, reported, constrained = steps_with_masks(runner, 60)
    assert masked == reported and 0 < len(reported) < constrained / 2


def test_requests_that_need_the_full_sampler_are_recognised_at_every_token(checkpoints):
    """min_tokens needs the full sampler until it is reached, other parameters always, and the slot's next request does
    not."""
    runner = make_runner(checkpoints["llama"].load(), CpuKernels(), torch.float32)
    join = Join(0, (1, 2, 3, 4), 2, 0, PLAIN[0], (0,))  # two tokens of the prompt, two of output
    needs_full_sampler = []
    for sampling in (*FULL_SAMPLER, PLAIN[0]):
        runner._slots.apply(Batch(step=0, joins=(replace(join, sampling=sampling),)))
        needs_full_sampler.append([])
        for _ in range(3):
            needs_full_sampler[-1].append(len(runner._slots.needs_full_sampler((1, 0))) > 0)
            runner._slots.advance(np.array([0]))
    assert needs_full_sampler == [[True] * 3] * 3 + [[True, False, False], [False] * 3]
