"""Whole steps in one go beside the same steps operation by operation: the same tokens, slots, keys and values."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.execution.models import load_model
from engine.scheduling.batch import Batch, Join
from engine.types import SamplingParams
from kernels.cpu.backend import CpuKernels
from kernels.decoder import DecoderShape, DecoderWeights, StepPass
from kernels.slots import StepState
from tests import needs
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.histories import BAD, DEMANDING, PLAIN, Histories, make_runner, words

pytestmark = needs.a_compiler


class OneByOne(CpuKernels):
    """The same operations, each called by itself."""

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        return None


@pytest.mark.parametrize(
    ("dtype", "may_round"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
)
@pytest.mark.parametrize("asked", [PLAIN, PLAIN * 4 + DEMANDING], ids=["plain", "demanding"])
@pytest.mark.parametrize("checkpoint", ["llama", "llama-odd", "mistral-window", "qwen3"], indirect=True)
def test_a_step_in_one_go_is_its_operations_one_by_one(
    checkpoint: Checkpoint, asked: tuple[SamplingParams, ...], dtype: torch.dtype, may_round: bool
):
    """Rows that decode and pieces of prompts in any company, some with a NaN, some who ask for more than filters: what
    is sampled, the slots' lengths and last tokens, and the bits of the cache."""
    model = load_model(checkpoint.path, dtype, torch.device("cpu"), lambda *_: None, kernels=CpuKernels(may_round))
    with torch.inference_mode():
        model._weights.embedding[BAD] = math.nan
    runners = [make_runner(model, kernels, dtype) for kernels in (CpuKernels(may_round), OneByOne(may_round))]
    assert runners[0]._in_one_go and not runners[1]._in_one_go
    histories = Histories(random.Random(len(asked)), asked)
    broken = tokens = 0
    for _ in range(500):
        batch = histories.next()
        outcome, expected = (runner.launch(batch)() for runner in runners)
        assert repr(outcome) == repr(expected)  # a NaN is not equal to itself
        one, other = runners
        assert np.array_equal(one._slots.lengths, other._slots.lengths)
        assert torch.equal(one._last_tokens, other._last_tokens)
        assert np.array_equal(words(one._cache.data), words(other._cache.data))
        histories.take(batch, outcome)
        tokens += len(outcome.sampled)
        broken += sum(outcome.broken) + sum(sampled.token_id < 0 for sampled in outcome.sampled)
    assert broken > 10 and tokens > 500


def test_who_asks_for_more_than_filters_is_known_from_the_first_to_the_last_token(checkpoints):
    """min_tokens until it has them, the rest for ever, and nothing of it is left for who has the slot next."""
    runner = make_runner(checkpoints["llama"].load(), CpuKernels(), torch.float32)
    join = Join(0, (1, 2, 3, 4), 2, 0, PLAIN[0], (0,))  # two of the prompt, two that it said
    demands = []
    for sampling in (*DEMANDING, PLAIN[0]):
        runner._slots.apply(Batch(step=0, joins=(replace(join, sampling=sampling),)))
        demands.append([])
        for _ in range(3):
            demands[-1].append(len(runner._slots.demanding((1, 0))) > 0)
            runner._slots.advance(np.array([0]))
    assert demands == [[True] * 3] * 3 + [[True, False, False], [False] * 3]
