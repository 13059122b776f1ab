"""Whole steps in one go beside the same steps operation by operation: the same tokens, slots, keys and values."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from engine.execution.cache import KVCache
from engine.execution.models import Model, load_model
from engine.execution.runner import ModelRunner
from engine.scheduling.batch import Batch, Chunk, Join, Outcome
from engine.types import SamplingParams
from kernels.cpu.backend import CpuKernels
from kernels.decoder import DecoderShape, DecoderWeights, StepPass
from kernels.interface import Kernels
from kernels.slots import StepState
from tests.engine.models.checkpoints import VOCAB, Checkpoint

BAD = 7  # the token whose embedding is NaN
SLOTS, MAX_LEN, PAGE_SIZE = 6, 320, 16  # attention takes another way from position 256 on
PAGES = MAX_LEN // PAGE_SIZE
PLAIN = (
    SamplingParams(max_tokens=40, temperature=0.0),
    SamplingParams(max_tokens=40, temperature=0.9, seed=2**64 - 3),
    SamplingParams(max_tokens=40, temperature=1.2, top_k=20, top_p=0.8, seed=5),
    SamplingParams(max_tokens=40, temperature=0.7, min_p=0.1, seed=6),
)
DEMANDING = (
    SamplingParams(max_tokens=40, temperature=0.8, seed=7, logprobs=2),
    SamplingParams(max_tokens=40, temperature=0.8, seed=8, repetition_penalty=1.5),
    SamplingParams(max_tokens=40, temperature=0.8, seed=9, logit_bias={3: 2.0}),
    SamplingParams(max_tokens=40, temperature=0.8, seed=10, min_tokens=3, stop_token_ids=(4,)),
)


class OneByOne(CpuKernels):
    """The same operations, each called by itself."""

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        return None


@dataclass
class Speaker:
    """Whoever has a slot: tokens it has, how many of them are computed, how many it will have, and its pages."""

    tokens: int
    end: int
    pages: int
    computed: int = 0


class Histories:
    """Steps of who comes, is read in pieces, speaks and goes, as the dice say."""

    def __init__(self, dice: random.Random, asked: tuple[SamplingParams, ...]) -> None:
        self._dice, self._asked = dice, asked
        self._pages = dice.sample(range(SLOTS * PAGES), SLOTS * PAGES)
        self._speakers: dict[int, Speaker] = {}

    def next(self) -> Batch:
        """Some join, most of those who are there do something, sometimes nobody does."""
        joins, grown, decodes, chunks = [], [], [], []
        for slot in range(SLOTS):
            if slot not in self._speakers and self._dice.random() < 0.5:
                joins.append(self._join(slot))
        for slot, speaker in self._dice.sample(list(self._speakers.items()), len(self._speakers)):
            left = speaker.tokens - speaker.computed
            if self._dice.random() < 0.2:
                continue
            if left == 1:
                decodes.append(slot)
                if speaker.tokens > speaker.pages * PAGE_SIZE:
                    grown.append((slot, speaker.pages, self._pages_of(slot)[speaker.pages]))
                    speaker.pages += 1
            else:
                length = self._dice.choice((left, left, 1, min(left, self._dice.randint(1, 60))))
                chunks.append(Chunk(slot, speaker.computed, length, length == left))
        return Batch(step=0, joins=tuple(joins), grown=tuple(grown), decodes=tuple(decodes), chunks=tuple(chunks))

    def take(self, batch: Batch, outcome: Outcome) -> None:
        """Who has spoken, and who is gone."""
        for slot, length in [*((slot, 1) for slot in batch.decodes), *((c.slot, c.length) for c in batch.chunks)]:
            self._speakers[slot].computed += length
        for slot, sampled in zip(batch.sampled, outcome.sampled, strict=True):
            speaker = self._speakers[slot]
            speaker.tokens += 1
            if sampled.token_id < 0 or speaker.tokens == speaker.end:
                del self._speakers[slot]

    def _join(self, slot: int) -> Join:
        length = self._dice.choice((1, 2, 16, 17, self._dice.randint(1, 300), MAX_LEN - self._dice.randint(1, 20)))
        tokens = tuple(self._dice.choice([t for t in range(VOCAB) if t != BAD]) for _ in range(length))
        if self._dice.random() < 0.1:
            at = self._dice.randrange(length)
            tokens = (*tokens[:at], BAD, *tokens[at + 1 :])
        pages = -(-length // PAGE_SIZE)
        self._speakers[slot] = Speaker(length, min(MAX_LEN, length + self._dice.randint(1, 30)), pages)
        sampling, prompt_len = self._dice.choice(self._asked), self._dice.randint(1, length)
        return Join(slot, tokens, prompt_len, self._dice.randrange(3), sampling, tuple(self._pages_of(slot)[:pages]))

    def _pages_of(self, slot: int) -> list[int]:
        return self._pages[slot * PAGES : (slot + 1) * PAGES]


def make_runner(model: Model, kernels: Kernels, dtype: torch.dtype) -> ModelRunner:
    shape = (model.num_layers, model.num_kv_heads, model.head_dim)
    cache = KVCache.allocate(SLOTS * PAGES, PAGE_SIZE, *shape, dtype, model.device)
    return ModelRunner(model, cache, kernels, SLOTS, MAX_LEN)


def words(tensor: torch.Tensor) -> np.ndarray:
    """The bits, so that a NaN is equal to itself."""
    return tensor.contiguous().view(torch.uint8).numpy()


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
    runners = [make_runner(model, kernels, dtype) for kernels in (CpuKernels(may_round), OneByOne())]
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
