"""Histories of steps for a runner: who comes, is read in pieces, speaks and goes, some with a NaN in their prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.cache import KVCache
from engine.execution.graphs import Capture
from engine.execution.models import Model
from engine.execution.runner import ModelRunner
from engine.scheduling.batch import Batch, Chunk, Join, Outcome
from engine.types import SamplingParams
from kernels.interface import Kernels
from tests.engine.models.checkpoints import VOCAB

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


def make_runner(model: Model, kernels: Kernels, dtype: torch.dtype, capture: Capture | None = None) -> ModelRunner:
    shape = (model.num_layers, model.num_kv_heads, model.head_dim)
    cache = KVCache.allocate(SLOTS * PAGES, PAGE_SIZE, *shape, dtype, model.device)
    return ModelRunner(model, cache, kernels, SLOTS, MAX_LEN, capture)


def words(tensor: torch.Tensor) -> np.ndarray:
    """The bits, so that a NaN is equal to itself."""
    return tensor.contiguous().view(torch.uint8).numpy()
