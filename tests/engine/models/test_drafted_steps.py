"""Steps with drafts equal steps of one token a sequence: tokens, slots, keys and values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from engine.drafting.speculator import MAX_DRAFTS
from engine.execution import graphs
from engine.execution.models import Model, load_model
from engine.execution.models.decoder import Decoder
from engine.execution.runner import ModelRunner
from engine.model_files.open_model import open_model
from engine.scheduling.batch import Batch, Chunk, Join, Sampled, StepOutcome
from engine.scheduling.constraint import NO_TOKEN_ALLOWED
from engine.types import SamplingParams
from kernels.cpu.backend import CpuKernels
from kernels.decoder import EmbeddingTable
from kernels.interface import Kernels
from kernels.reference.backend import ReferenceKernels
from tests import requirements
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.histories import (
    FULL_SAMPLER,
    MAX_LEN,
    NAN_TOKEN,
    PAGE_SIZE,
    PLAIN,
    SLOTS,
    Histories,
    RandomMask,
    SingleOperations,
    make_runner,
    to_bytes,
)
from tests.profiles import examples

pytestmark = requirements.a_compiler

STEPS = examples(300)  # of a random history
WRONG_TOKENS = range(20, 28)

# Kernels of fused steps, and of single operations.
BACK_ENDS = pytest.mark.parametrize(
    ("make_kernels", "dtype"),
    [
        pytest.param(CpuKernels, torch.float32, id="float32"),
        pytest.param(CpuKernels, torch.bfloat16, id="bfloat16 weights"),
        pytest.param(partial(CpuKernels, True), torch.bfloat16, id="bfloat16"),
        pytest.param(partial(CpuKernels, False, 8), torch.float32, id="int8 of float32"),
        pytest.param(partial(CpuKernels, True, 8), torch.bfloat16, id="int8"),
        pytest.param(partial(CpuKernels, True, 4), torch.bfloat16, id="int4"),
        pytest.param(SingleOperations, torch.float32, id="single operations"),
        pytest.param(partial(SingleOperations, True), torch.bfloat16, id="single operations in bfloat16"),
        pytest.param(ReferenceKernels, torch.float32, id="reference"),
    ],
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


def load(checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype) -> Model:
    """Load a model in which the embedding of one token is NaN, unless embeddings are quantised."""
    model = load_model(open_model(checkpoint.path), dtype, torch.device("cpu"), lambda *_: None, kernels=kernels)
    if isinstance(model, Decoder) and isinstance(model._weights.embedding, EmbeddingTable):
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
    """Return drafts that are right, wrong, or right with a probability of 0.9; none fails or has a row with NaN."""
    share = rng.choice((0.0, 0.9, 1.0, 1.0))
    right = [*text, *[-1] * count][:count]
    is_wrong = [token < 0 or token == NAN_TOKEN or rng.random() >= share for token in right]
    return tuple(rng.choice(WRONG_TOKENS) if wrong else token for token, wrong in zip(right, is_wrong, strict=True))


def failed(batch: Batch, outcome: StepOutcome) -> set[int]:
    """Return the slots of a step that fail."""
    chunks = zip(batch.chunks, outcome.has_nan, strict=bool(outcome.has_nan))
    tokens = zip(batch.sampled_slots, outcome.sampled, strict=True)
    return {chunk.slot for chunk, has_nan in chunks if has_nan} | {slot for slot, token in tokens if token.token_id < 0}


@BACK_ENDS
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
    make_kernels: Callable[[], Kernels],
    dtype: torch.dtype,
):
    """Right, wrong and mixed drafts of several slots, over the ends of pages, with and without masks and the full
    sampler, beside plain rows and prompts: each slot has the tokens, log-probabilities, length, last token, counts of
    tokens, keys and values of steps of one token.
    """
    kernels = make_kernels()
    model = load(checkpoint, kernels, dtype)
    compare_steps(
        make_runner(model, kernels, dtype), make_runner(model, kernels, dtype), sampling_choices, is_constrained
    )


def compare_steps(
    drafted: ModelRunner, plain: ModelRunner, sampling_choices: tuple[SamplingParams, ...], is_constrained: bool
) -> None:
    """Run the same random history with and without drafts."""
    assert drafted.max_draft_rows
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
        assert failed(batch_with_drafts, outcome) == failed(batch, expected)
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


@pytest.mark.parametrize(
    ("sampling_choices", "is_constrained"),
    [(PLAIN, False), (PLAIN * 2 + FULL_SAMPLER, True)],
    ids=["plain", "full sampler and masks"],
)
@pytest.mark.parametrize("checkpoint", ["llama", "mistral-window"], indirect=True)
def test_drafts_in_recorded_steps_change_no_bit(
    checkpoint: Checkpoint,
    sampling_choices: tuple[SamplingParams, ...],
    is_constrained: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    """Steps with drafts are recorded unless they have prompts, too many rows, or drafts of slots that need more than
    filters. Their slots on the device are those of the host."""
    monkeypatch.setattr(graphs, "MAX_PROMPT_ROWS", 64)
    kernels = ReferenceKernels()
    model = load(checkpoint, kernels, torch.float32)
    drafted, plain = (make_runner(model, kernels, torch.float32, capture) for capture in (lambda step: step, None))
    drafted.record(lambda *_: None)
    single: list[Batch] = []
    compute = drafted._compute

    def counted(batch: Batch, *rest: Any) -> Any:
        single.append(batch)
        return compute(batch, *rest)

    drafted._compute = counted
    replays = drafted._graphs.run
    recorded = []
    drafted._graphs.run = lambda shape, *rest: recorded.append(shape.drafts) or replays(shape, *rest)
    compare_steps(drafted, plain, sampling_choices, is_constrained)
    assert min(sum(recorded), sum(bool(batch.drafted) for batch in single)) > STEPS / 40
    device, host = drafted._graphs.slots.tensors.lengths[:SLOTS], drafted._slots.lengths
    assert device[host > 0].tolist() == host[host > 0].tolist()


PATHS = pytest.mark.parametrize("make_kernels", [CpuKernels, SingleOperations, ReferenceKernels])
PROMPT = tuple(range(30, 40))
START = Batch(step=0, joins=(Join(0, PROMPT, 10, 0, PLAIN[1], (3, 1)),), chunks=(Chunk(0, 0, 10, 1),))


def with_drafts(drafts: tuple[int, ...], **more: Any) -> Batch:
    """Return the step after `START` with drafts."""
    return Batch(step=0, chunks=(Chunk(0, 10, 1 + len(drafts), 1 + len(drafts), None, drafts),), **more)


def text_of(runner: ModelRunner, count: int) -> list[int]:
    """Run `START`, and return the slot's `count` + 1 tokens from then on. They are different ones."""
    text = [runner.launch(START)().sampled[0].token_id, *look_ahead(runner, 0, count)]
    assert len({*text[1:]}) == count and not {*text[1:]} & {*PROMPT, text[0]}
    return text


@PATHS
@pytest.mark.parametrize("spoiled", range(4))
def test_the_nan_of_a_draft_is_reported_when_its_token_is_reached(
    checkpoints, make_kernels: Callable[[], Kernels], spoiled: int
):
    """In a fused step it is in all rows of the chunk, whose slot is therefore computed without drafts."""
    kernels = make_kernels()
    model, count = load(checkpoints["llama"], kernels, torch.float32), 5
    assert isinstance(model._weights.embedding, EmbeddingTable)
    text = text_of(make_runner(model, kernels, torch.float32), count)
    with torch.inference_mode():
        model._weights.embedding.table[text[1 + spoiled]] = math.nan
    runner = make_runner(model, kernels, torch.float32)
    runner.launch(START)()
    outcome = runner.launch(with_drafts(tuple(text[1:count])))()
    counting = 1 if runner._fused_step else 1 + spoiled
    assert [outcome.sampled[0], *outcome.further.get(0, ())] == [Sampled(token) for token in text[1 : 1 + counting]]
    assert outcome.has_nan == (False,)
    assert int(runner._slots.lengths[0]) == 11 + counting and int(runner._last_tokens[0]) == text[counting]
    assert [decode(runner, 0).token_id for _ in range(2 + spoiled - counting)] == [
        *text[1 + counting : 2 + spoiled],
        -1,
    ]


@PATHS
def test_a_wrong_draft_whose_row_has_nan_fails_no_sequence(checkpoints, make_kernels: Callable[[], Kernels]):
    """The row before it has read no NaN."""
    kernels = make_kernels()
    model = load(checkpoints["llama"], kernels, torch.float32)
    runner = make_runner(model, kernels, torch.float32)
    runner.launch(START)()
    [expected] = look_ahead(runner, 0, 1)
    outcome = runner.launch(with_drafts((NAN_TOKEN,)))()
    assert outcome.sampled == (Sampled(expected),) and not outcome.further


@PATHS
def test_a_nan_of_the_sequence_fails_it(checkpoints, make_kernels: Callable[[], Kernels]):
    """Its first token fails as without drafts, whatever the rows of drafts have sampled."""
    kernels = make_kernels()
    model = load(checkpoints["llama"], kernels, torch.float32)
    runner = make_runner(model, kernels, torch.float32)
    text = text_of(runner, 2)
    runner._cache.data[3, ..., 5, :] = math.nan  # of a position in the prompt
    outcome = runner.launch(with_drafts((text[1],)))()
    assert outcome.sampled == (Sampled(-1),) and not outcome.further
    assert int(runner._slots.lengths[0]) == 12 and int(runner._last_tokens[0]) == 0


@PATHS
def test_a_row_of_a_draft_without_an_allowed_token_does_not_count(checkpoints, make_kernels: Callable[[], Kernels]):
    """The next step reports it."""
    kernels = make_kernels()
    model = load(checkpoints["llama"], kernels, torch.float32)
    runner = make_runner(model, kernels, torch.float32)
    text = text_of(runner, 2)
    mask = RandomMask(random.Random(0))
    mask._masks = [np.full_like(mask.words, -1), np.zeros_like(mask.words)]
    outcome = runner.launch(with_drafts((text[1],), constraints=((0, mask),)))()
    assert outcome.sampled == (Sampled(text[1]),) and not outcome.further
    assert int(runner._slots.lengths[0]) == 12 and int(runner._last_tokens[0]) == text[1]
    assert decode(runner, 0, mask, 1).token_id == NO_TOKEN_ALLOWED


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_drafts_of_a_recorded_step_end_where_no_token_is_allowed(checkpoints, empty: int):
    """On the device as for the host. The rows before have their masks."""
    model = checkpoints["llama"].load()
    text = text_of(make_runner(model, ReferenceKernels(), torch.float32), 4)
    runner = make_runner(model, ReferenceKernels(), torch.float32, lambda step: step)
    runner.record(lambda *_: None)
    mask = RandomMask(random.Random(0))
    only = [np.zeros_like(mask.words) for _ in range(4)]
    for words, token in zip(only, text[1:], strict=False):
        words.view(np.uint32)[token // 32] = 1 << token % 32
    mask._masks = [np.zeros_like(words) if index == empty else words for index, words in enumerate(only)]
    runner.launch(START)()
    outcome = runner.launch(with_drafts(tuple(text[1:4]), constraints=((0, mask),)))()
    tokens = [token.token_id for token in (*outcome.sampled, *outcome.further.get(0, ()))]
    assert tokens == (text[1 : 1 + empty] or [NO_TOKEN_ALLOWED])
    assert int(runner._slots.lengths[0]) == int(runner._graphs.slots.tensors.lengths[0]) == 11 + len(tokens)
    assert int(runner._last_tokens[0]) == max(0, tokens[-1])
    if empty:
        assert decode(runner, 0, mask, empty).token_id == NO_TOKEN_ALLOWED


@PATHS
def test_log_probabilities_of_a_prompt_are_its_own_beside_drafts(checkpoints, make_kernels: Callable[[], Kernels]):
    """The prompt's rows follow those of drafts."""
    kernels = make_kernels()
    model = load(checkpoints["llama"], kernels, torch.float32)
    runner = make_runner(model, kernels, torch.float32)
    text = text_of(runner, 3)
    join = Join(1, PROMPT[::-1], 10, 0, PLAIN[0], (4,))
    chunk = Chunk(1, 0, 10, 1, 2)
    [expected] = (
        make_runner(model, kernels, torch.float32)
        .launch(Batch(step=0, joins=(join,), chunks=(chunk,)))()
        .prompt_tokens.values()
    )
    batch = with_drafts(tuple(text[1:3]), joins=(join,))
    outcome = runner.launch(replace(batch, chunks=(chunk, *batch.chunks)))()
    assert outcome.prompt_tokens == {0: expected}
    assert outcome.further == {1: tuple(map(Sampled, text[2:4]))}


def test_recorded_steps_with_drafts_advance_the_slots_on_the_device(checkpoints):
    """Steps of four rows, of three and one for padding, and of the same slots with other drafts, one after another.
    Padding has no draft, even if the row there had the token that would be right now."""
    model = checkpoints["llama"].load()
    text = text_of(make_runner(model, ReferenceKernels(), torch.float32), 9)
    runner = make_runner(model, ReferenceKernels(), torch.float32, lambda step: step)
    runner.record(lambda *_: None)
    runner.launch(START)()
    find, longest, start = runner._graphs.find, [], 1
    runner._graphs.find = lambda *args, **options: longest.append(args[1]) or find(*args, **options)
    for drafts, right in (((text[1], text[2], text[6]), 2), (text[4:6], 2), (text[7:9], 2)):
        rows = 1 + len(drafts)
        outcome = runner.launch(Batch(step=0, chunks=(Chunk(0, 9 + start, rows, rows, None, tuple(drafts)),)))()
        tokens = [token.token_id for token in (*outcome.sampled, *outcome.further[0])]
        assert tokens == text[start : start + 1 + right]
        assert longest[-1] == 10 + start + len(drafts), "the page table is as wide as the last row needs"
        start += len(tokens)
        assert int(runner._graphs.slots.tensors.lengths[0]) == runner._slots.lengths[0] == 10 + start
        assert int(runner._last_tokens[0]) == tokens[-1]


@pytest.mark.parametrize(
    ("checkpoint", "make_kernels", "dtype", "accepts"),
    [
        ("llama", CpuKernels, torch.bfloat16, True),
        ("llama", SingleOperations, torch.bfloat16, True),
        ("llama", ReferenceKernels, torch.float32, True),
        ("llama", ReferenceKernels, torch.bfloat16, False),
        ("olmo2", CpuKernels, torch.float32, False),
    ],
    indirect=["checkpoint"],
)
def test_drafts_are_accepted_where_a_row_has_its_bits_beside_any_other(
    checkpoint: Checkpoint, make_kernels: Callable[[], Kernels], dtype: torch.dtype, accepts: bool
):
    """Compiled kernels compute in float32. Torch multiplies rows of bfloat16 in an order that may depend on their
    number, and a model of transformers may multiply in any way.
    """
    kernels = make_kernels()
    runner = make_runner(load(checkpoint, kernels, dtype), kernels, dtype)
    assert bool(runner.max_draft_rows) == accepts
