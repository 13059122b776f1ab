"""Random histories of steps for a runner: sequences join, prefill in chunks, decode and leave, some with NaN in their
prompts."""

from __future__ import annotations

import copy
import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from engine.execution.cache import KVCache
from engine.execution.graphs import Capture
from engine.execution.models import Model
from engine.execution.runner import ModelRunner
from engine.scheduling.batch import Batch, Chunk, Join, StepOutcome
from engine.scheduling.constraint import NO_DRAFTS, NO_TOKEN_ALLOWED
from engine.types import SamplingParams
from kernels.cpu.backend import CpuKernels
from kernels.decoder import DecoderShape, DecoderWeights, StepPass
from kernels.interface import Kernels
from kernels.slots import StepState
from tests.engine.models.checkpoints import VOCAB

NAN_TOKEN = 7  # the token whose embedding is NaN
SLOTS, MAX_LEN, PAGE_SIZE = 6, 320, 16  # attention changes its algorithm at position 256
PAGES = MAX_LEN // PAGE_SIZE
PLAIN = (
    SamplingParams(max_tokens=40, temperature=0.0),
    SamplingParams(max_tokens=40, temperature=0.9, seed=2**64 - 3),
    SamplingParams(max_tokens=40, temperature=1.2, top_k=20, top_p=0.8, seed=5),
    SamplingParams(max_tokens=40, temperature=0.7, min_p=0.1, seed=6),
    SamplingParams(max_tokens=40, temperature=1.5, top_n_sigma=1.0, seed=4),
)
FULL_SAMPLER = (
    SamplingParams(max_tokens=40, temperature=0.8, seed=7, logprobs=2),
    SamplingParams(max_tokens=40, temperature=0.8, seed=8, repetition_penalty=1.5),
    SamplingParams(max_tokens=40, temperature=0.8, seed=9, logit_bias={3: 2.0}),
    SamplingParams(max_tokens=40, temperature=0.8, seed=10, min_tokens=3, stop_token_ids=(4,)),
)


@dataclass
class Slot:
    """Sequence in a slot: tokens so far and at the end, allocated pages, and computed tokens."""

    tokens: int
    end: int
    pages: int
    computed: int = 0


class RandomMask:
    """Constraint of the next tokens: a random set for each, sometimes empty."""

    is_active, is_ready, failure, drafts = True, True, None, NO_DRAFTS

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        density = rng.choice((0.0, 0.02, 0.5, 1.0))
        self._masks = [self._mask(density)]

    @property
    def words(self) -> np.ndarray:
        """Return the mask of the next token."""
        return self._masks[0]

    def later(self, count: int) -> RandomMask:
        """Return the constraint after `count` tokens."""
        while len(self._masks) <= count:
            self._masks.append(self._mask(self._rng.choice((0.0, 0.3, 0.5, 1.0))))
        other = copy.copy(self)
        other._masks = self._masks[count:]
        return other

    def _mask(self, density: float) -> np.ndarray:
        words = np.zeros(-(-VOCAB // 32), np.int32)
        allowed = [token for token in range(VOCAB) if self._rng.random() < density]
        np.bitwise_or.at(
            words.view(np.uint32),
            np.array(allowed, int) // 32,
            np.uint32(1) << (np.array(allowed, np.uint32) % 32),
        )
        return words

    def consume(self, token_id: int) -> None:
        raise NotImplementedError

    def prepare_mask(self, proposal: Sequence[int] = (), limit: int = 0) -> None:
        raise NotImplementedError

    def take_seconds(self) -> float:
        raise NotImplementedError

    def write_masks(self, address: int, size: int, count: int = 1) -> None:
        assert size == self.words.nbytes and count <= len(self._masks)
        for index in range(count):
            ctypes.memmove(address + index * size, self._masks[index].ctypes.data, size)


class Histories:
    """Generator of random steps in which sequences join, prefill in chunks, decode and leave.

    is_constrained: half of the sampled tokens are restricted to random sets.
    """

    def __init__(
        self, rng: random.Random, sampling_choices: tuple[SamplingParams, ...], *, is_constrained: bool = False
    ) -> None:
        self._rng, self._sampling, self._is_constrained = rng, sampling_choices, is_constrained
        self._pages = rng.sample(range(SLOTS * PAGES), SLOTS * PAGES)
        self._sequences: dict[int, Slot] = {}
        self.constraints: dict[int, RandomMask] = {}  # of the slots of a step

    def next(self) -> Batch:
        """Return a step in which some sequences join and most others compute; it may be empty."""
        joins, grown, decodes, chunks = [], [], [], []
        for slot in range(SLOTS):
            if slot not in self._sequences and self._rng.random() < 0.5:
                joins.append(self._join(slot))
        for slot, sequence in self._rng.sample(list(self._sequences.items()), len(self._sequences)):
            left = sequence.tokens - sequence.computed
            if self._rng.random() < 0.2:
                continue
            if left == 1:
                decodes.append(slot)
                if sequence.tokens > sequence.pages * PAGE_SIZE:
                    grown.append((slot, sequence.pages, self._pages_of(slot)[sequence.pages]))
                    sequence.pages += 1
            else:
                length = self._rng.choice((left, left, 1, min(left, self._rng.randint(1, 60))))
                chunks.append(Chunk(slot, sequence.computed, length, length == left))
        batch = Batch(step=0, joins=tuple(joins), new_pages=tuple(grown), decodes=tuple(decodes), chunks=tuple(chunks))
        if not self._is_constrained:
            return batch
        slots = [slot for slot in batch.sampled_slots if self._rng.random() < 0.5]
        self.constraints = {slot: RandomMask(self._rng) for slot in slots}
        return replace(batch, constraints=tuple(self.constraints.items()))

    def take(self, batch: Batch, outcome: StepOutcome) -> None:
        """Update sequences with the step's tokens, and remove ended ones."""
        for slot, length in [*((slot, 1) for slot in batch.decodes), *((c.slot, c.length) for c in batch.chunks)]:
            self._sequences[slot].computed += length
        for slot, sampled in zip(batch.sampled_slots, outcome.sampled, strict=True):
            sequence = self._sequences[slot]
            sequence.tokens += 1
            if sampled.token_id < 0 or sequence.tokens == sequence.end:
                del self._sequences[slot]

    def _join(self, slot: int) -> Join:
        length = self._rng.choice((1, 2, 16, 17, self._rng.randint(1, 300), MAX_LEN - self._rng.randint(1, 20)))
        tokens = tuple(self._rng.choice([t for t in range(VOCAB) if t != NAN_TOKEN]) for _ in range(length))
        if self._rng.random() < 0.1:
            at = self._rng.randrange(length)
            tokens = (*tokens[:at], NAN_TOKEN, *tokens[at + 1 :])
        pages = -(-length // PAGE_SIZE)
        self._sequences[slot] = Slot(length, min(MAX_LEN, length + self._rng.randint(1, 30)), pages)
        sampling, prompt_len = self._rng.choice(self._sampling), self._rng.randint(1, length)
        return Join(slot, tokens, prompt_len, self._rng.randrange(3), sampling, tuple(self._pages_of(slot)[:pages]))

    def _pages_of(self, slot: int) -> list[int]:
        return self._pages[slot * PAGES : (slot + 1) * PAGES]


class SingleOperations(CpuKernels):
    """Kernels without a fused step."""

    def prepare_step(self, shape: DecoderShape, weights: DecoderWeights, state: StepState) -> StepPass | None:
        return None


def make_runner(model: Model, kernels: Kernels, dtype: torch.dtype, capture: Capture | None = None) -> ModelRunner:
    cache = KVCache.allocate(SLOTS * PAGES, PAGE_SIZE, model.cache_spec(), dtype, model.device)
    return ModelRunner(model, cache, kernels, SLOTS, MAX_LEN, capture)


def to_bytes(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes, so that NaN is equal to itself."""
    return tensor.contiguous().view(torch.uint8).numpy()


def steps_with_masks(runner: ModelRunner, steps: int) -> tuple[list[int], list[int], int]:
    """Run random steps with masks. Returns the slots that the full sampler sampled, those of rows without an allowed
    token, and the number of constrained rows.
    """
    sampled: list[int] = []
    sample = runner._sample

    def counted(logits: torch.Tensor, parameters: Any, slots: Any, *masks: Any) -> Any:
        sampled.extend(slots.tolist())
        return sample(logits, parameters, slots, *masks)

    runner._sample = counted  # type: ignore[method-assign]
    histories = Histories(random.Random(3), PLAIN, is_constrained=True)
    empty: list[int] = []
    constrained = 0
    for _ in range(steps):
        batch = histories.next()
        outcome = runner.launch(batch)()
        histories.take(batch, outcome)
        constrained += len(batch.constraints)
        of_step = [slot for slot, mask in batch.constraints if isinstance(mask, RandomMask) and not mask.words.any()]
        empty += sorted(of_step, key=batch.sampled_slots.index)
        negative = [
            slot
            for slot, token in zip(batch.sampled_slots, outcome.sampled, strict=True)
            if token.token_id == NO_TOKEN_ALLOWED
        ]
        assert sorted(negative) == sorted(of_step)
    return sampled, empty, constrained
