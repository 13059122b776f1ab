"""Steps with drafts equal steps of one token a sequence: tokens, slots, keys and values."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.drafting.speculator import MAX_DRAFTS
from engine.execution.models import Model, load_model
from engine.execution.runner import ModelRunner
from engine.model_files.open_model import open_model
from engine.scheduling.batch import Batch, Chunk, Join, Sampled
from engine.types import SamplingParams
from kernels.cpu.backend import CpuKernels
from kernels.decoder import EmbeddingTable
from tests import requirements
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.histories import (
    FULL_SAMPLER,
    MAX_LEN,
    NAN_TOKEN,
    PAGE_SIZE,
    PLAIN,
    Histories,
    RandomMask,
    make_runner,
    to_bytes,
)
from tests.profiles import examples

pytestmark = requirements.a_compiler

STEPS = examples(300)  # of a random history
WRONG_TOKENS = range(20, 28)

ARITHMETICS = pytest.mark.parametrize(
    ("dtype", "allow_bf16", "bits"),
    [
        (torch.float32, False, None),
        (torch.bfloat16, False, None),
        (torch.bfloat16, True, None),
        (torch.float32, False, 8),
        (torch.bfloat16, True, 8),
        (torch.bfloat16, True, 4),
    ],
    ids=["float32", "bfloat16 weights", "bfloat16", "int8 of float32", "int8", "int4"],
)


class DraftedHistories(Histories):
    """Histories in which page tables have room for drafts, and sequences advance by several tokens."""

    def next(self) -> Batch:
        """Return a step in which some of the decoding sequences get a page more than they need."""
        batch = super().next()
        grown = list(batch.new_pages)
        for slot in batch.decodes:
            sequence = self._sequences[slot]
            if self._rng.random() < 0.8 and sequence.pages * PAGE_SIZE < MAX_LEN:
                grown.append((slot, sequence.pages, self._pages_of(slot)[sequence.pages]))
                sequence.pages += 1
        return replace(batch, new_pages=tuple(grown))

    def room(self, slot: int) -> int:
        """Return how many drafts a sequence may have."""
        sequence = self._sequences[slot]
        return min(MAX_DRAFTS, sequence.pages * PAGE_SIZE - sequence.tokens, sequence.end - sequence.tokens - 1)

    def chunk(self, slot: int, drafts: tuple[int, ...]) -> Chunk:
        """Return the rows of the last token and of drafts."""
        return Chunk(slot, self._sequences[slot].computed, 1 + len(drafts), 1 + len(drafts), None, drafts)

    def take_further(self, slot: int, count: int) -> None:
        """Count further tokens of a sequence that goes on."""
        sequence = self._sequences[slot]
        sequence.tokens += count
        sequence.computed += count
        if sequence.tokens == sequence.end:
            del self._sequences[slot]

    def computed(self) -> Iterator[tuple[list[int], list[int]]]:
        """Return the pages and offsets of the computed tokens, sequence by sequence."""
        for slot, sequence in self._sequences.items():
            pages, positions = self._pages_of(slot), range(sequence.computed)
            yield [pages[at // PAGE_SIZE] for at in positions], [at % PAGE_SIZE for at in positions]


def load(checkpoint: Checkpoint, kernels: CpuKernels, dtype: torch.dtype) -> Model:
    """Load a model in which the embedding of one token is NaN, unless embeddings are quantised."""
    model = load_model(open_model(checkpoint.path), dtype, torch.device("cpu"), lambda *_: None, kernels=kernels)
    if isinstance(model._weights.embedding, EmbeddingTable):
        with torch.inference_mode():
            model._weights.embedding.table[NAN_TOKEN] = math.nan
    return model


def look_ahead(runner: ModelRunner, slot: int, count: int, mask: RandomMask | None = None) -> list[int]:
    """Return the next tokens of a slot, up to one without logits (NaN), and leave the slot as it was.

    mask: of the token before them.
    """
    length, last = int(runner._slots.lengths[slot]), int(runner._last_tokens[slot])
    seen = runner._sampler._edits._seen
    counts = seen.counts[slot].clone() if seen is not None else None
    tokens: list[int] = []
    while len(tokens) < count and (not tokens or tokens[-1] >= 0):
        tokens.append(decode(runner, slot, mask, 1 + len(tokens)).token_id)
    runner._slots.lengths[slot], runner._last_tokens[slot] = length, last
    if seen is not None:
        with torch.inference_mode():
            seen.counts[slot] = counts
    return tokens


def decode(runner: ModelRunner, slot: int, mask: RandomMask | None = None, count: int = 0) -> Sampled:
    """Return the next token of a slot, in a step of one row. mask: of the token that is `count` before it."""
    constraints = () if mask is None else ((slot, mask.later(count)),)
    return runner.launch(Batch(step=0, decodes=(slot,), constraints=constraints))().sampled[0]


def guess(rng: random.Random, text: list[int], count: int) -> tuple[int, ...]:
    """Return drafts that are right, wrong, or right with a probability of 0.9; none has a row with NaN."""
    share = rng.choice((0.0, 0.9, 1.0, 1.0))
    right = [*text, *[-1] * count][:count]
    is_wrong = [token in (-1, NAN_TOKEN) or rng.random() >= share for token in right]
    return tuple(rng.choice(WRONG_TOKENS) if wrong else token for token, wrong in zip(right, is_wrong, strict=True))


@ARITHMETICS
@pytest.mark.parametrize(
    ("sampling_choices", "is_constrained"),
    [(PLAIN, False), (PLAIN * 2 + FULL_SAMPLER, True)],
    ids=["plain", "full sampler and masks"],
)
@pytest.mark.parametrize("checkpoint", ["llama-odd", "mistral-window", "qwen3", "granite"], indirect=True)
def test_drafts_change_no_bit(
    checkpoint: Checkpoint,
    sampling_choices: tuple[SamplingParams, ...],
    is_constrained: bool,
    dtype: torch.dtype,
    allow_bf16: bool,
    bits: int | None,
):
    """Right, wrong and mixed drafts of several slots, over the ends of pages, with and without masks and the full
    sampler, beside plain rows and prompts: each slot has the tokens, log-probabilities, length, last token, counts of
    tokens, keys and values of steps of one token.
    """
    kernels = CpuKernels(allow_bf16, bits)
    model = load(checkpoint, kernels, dtype)
    drafted, plain = (make_runner(model, kernels, dtype) for _ in range(2))
    rng = random.Random(len(sampling_choices))
    histories = DraftedHistories(rng, sampling_choices, is_constrained=is_constrained)
    counts = [0] * (MAX_DRAFTS + 1)  # of chunks by the number of their right drafts
    for _ in range(STEPS):
        batch = histories.next()
        expected = plain.launch(batch)()
        first = dict(zip(batch.sampled_slots, expected.sampled, strict=True))
        chunks: list[Chunk] = []
        further: dict[int, list[Sampled]] = {}
        for slot in batch.decodes:
            room, mask = histories.room(slot), histories.constraints.get(slot) if batch.constraints else None
            may_end_early = mask is not None and plain._slots.records["min_tokens"][slot]  # see `can_have_drafts`
            if room < 1 or may_end_early or (mask is not None and not mask.words.any()) or rng.random() < 0.2:
                continue
            text = [first[slot].token_id]
            if text[0] >= 0:
                text += look_ahead(plain, slot, room, mask)
            drafts = guess(rng, text, rng.choice((1, room, room, rng.randint(1, room))))
            right = 0
            while right < len(drafts) and drafts[right] == text[right] and text[right + 1] >= 0:
                right += 1
            further[slot] = [decode(plain, slot, mask, 1 + index) for index in range(right)]
            assert [sampled.token_id for sampled in further[slot]] == text[1 : 1 + right]
            if mask is not None:
                mask.later(len(drafts))
            chunks.append(histories.chunk(slot, drafts))
            counts[right] += 1
        rest = tuple(slot for slot in batch.decodes if slot not in further)
        batch_with_drafts = replace(batch, decodes=rest, chunks=(*batch.chunks, *chunks))
        outcome = drafted.launch(batch_with_drafts)()
        slots = batch_with_drafts.sampled_slots
        assert repr(list(outcome.sampled)) == repr([first[slot] for slot in slots])
        assert repr({slots[index]: list(tokens) for index, tokens in outcome.further.items()}) == repr(
            {slot: further[slot] for slot in slots if further.get(slot)}
        )
        assert list(outcome.has_nan) == [*(expected.has_nan or [False] * len(batch.chunks)), *[False] * len(chunks)]
        assert np.array_equal(drafted._slots.lengths, plain._slots.lengths)
        assert torch.equal(drafted._last_tokens, plain._last_tokens)
        if (seen := plain._sampler._edits._seen) is not None:
            has_penalties = torch.from_numpy(plain._slots.penalised)
            assert torch.equal(drafted._sampler._edits._seen.counts[has_penalties], seen.counts[has_penalties])
        histories.take(batch, expected)
        for slot, tokens in further.items():
            if tokens:
                histories.take_further(slot, len(tokens))
        for pages, offsets in histories.computed():
            one, other = (to_bytes(runner._cache.data[pages, :, :, :, offsets]) for runner in (drafted, plain))
            assert np.array_equal(one, other)
    assert counts[0] and sum(counts[1:-1]) and counts[-1], counts


@pytest.mark.parametrize("spoiled", range(4))
def test_the_nan_of_a_draft_is_reported_when_its_token_is_reached(checkpoints, spoiled: int):
    """It is in all rows of the chunk, whose slot is therefore computed without drafts."""
    kernels = CpuKernels()
    model, count = load(checkpoints["llama"], kernels, torch.float32), 5
    assert isinstance(model._weights.embedding, EmbeddingTable)
    prompt = tuple(range(30, 40))
    start = Batch(step=0, joins=(Join(0, prompt, len(prompt), 0, PLAIN[1], (3, 1)),), chunks=(Chunk(0, 0, 10, 1),))
    runner = make_runner(model, kernels, torch.float32)
    text = [runner.launch(start)().sampled[0].token_id, *look_ahead(runner, 0, count)]
    assert len({*text[1:]}) == count and not {*text[1:]} & {*prompt, text[0]}
    with torch.inference_mode():
        model._weights.embedding.table[text[1 + spoiled]] = math.nan
    runner = make_runner(model, kernels, torch.float32)
    runner.launch(start)()
    outcome = runner.launch(Batch(step=0, chunks=(Chunk(0, 10, count, count, None, tuple(text[1:count])),)))()
    assert outcome.sampled == (Sampled(text[1]),) and outcome.has_nan == (False,)
    assert not outcome.further
    assert int(runner._slots.lengths[0]) == 12 and int(runner._last_tokens[0]) == text[1]
    assert [decode(runner, 0).token_id for _ in range(1 + spoiled)] == [*text[2 : 2 + spoiled], -1]


def test_a_wrong_draft_whose_row_has_nan_fails_no_sequence(checkpoints):
    """The row before it has read no NaN."""
    kernels = CpuKernels()
    model, prompt = load(checkpoints["llama"], kernels, torch.float32), tuple(range(30, 40))
    start = Batch(step=0, joins=(Join(0, prompt, len(prompt), 0, PLAIN[1], (3, 1)),), chunks=(Chunk(0, 0, 10, 1),))
    runner = make_runner(model, kernels, torch.float32)
    runner.launch(start)()
    [expected] = look_ahead(runner, 0, 1)
    outcome = runner.launch(Batch(step=0, chunks=(Chunk(0, 10, 2, 2, None, (NAN_TOKEN,)),)))()
    assert outcome.sampled == (Sampled(expected),) and not outcome.further
