"""Recorded steps equal the same steps with single operations: tokens, slots, keys and values. Recording is replaced by
calling the functions again."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from engine.execution import graphs
from engine.execution.graphs import MAX_SHORT_TILES
from engine.execution.models import load_model
from engine.model_files.open_model import open_model
from engine.scheduling.batch import Batch, Chunk, Join
from engine.types import SamplingParams
from kernels.query_tiles import MAX_TILE_QUERIES
from kernels.reference.backend import ReferenceKernels
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.histories import (
    FULL_SAMPLER,
    NAN_TOKEN,
    PLAIN,
    SLOTS,
    Histories,
    make_runner,
    steps_with_masks,
)
from tests.profiles import examples

STEPS = examples(400)  # of a random history


@pytest.mark.parametrize("is_constrained", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("sampling_choices", [PLAIN, PLAIN * 4 + FULL_SAMPLER], ids=["plain", "full sampler"])
@pytest.mark.parametrize("checkpoint", ["llama", "mistral-window", "qwen3"], indirect=True)
def test_a_recorded_step_equals_its_single_operations(
    checkpoint: Checkpoint,
    sampling_choices: tuple[SamplingParams, ...],
    is_constrained: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    """Decode rows and chunks in any batch, some too long for a recording, some with NaN, some with the full sampler,
    some with masks; slots on the device are equal too."""
    monkeypatch.setattr(graphs, "MAX_PROMPT_ROWS", 150)
    model = load_model(
        open_model(checkpoint.path), torch.float32, torch.device("cpu"), lambda *_: None, kernels=ReferenceKernels()
    )
    with torch.inference_mode():
        model._weights.embedding.table[NAN_TOKEN] = math.nan
    recorded, eager = (
        make_runner(model, ReferenceKernels(), torch.float32, capture) for capture in (lambda step: step, None)
    )
    recorded.record(lambda *_: None)
    histories = Histories(random.Random(len(sampling_choices)), sampling_choices, is_constrained=is_constrained)
    eager_steps = broken = tokens = 0
    compute = recorded._compute

    def computed(batch, sampled_parts, has_nan, masks):
        nonlocal eager_steps
        assert not batch.decodes
        eager_steps += 1
        return compute(batch, sampled_parts, has_nan, masks)

    recorded._compute = computed
    for _ in range(STEPS):
        batch = histories.next()
        outcome, expected = (runner.launch(batch)() for runner in (recorded, eager))
        assert repr(outcome.sampled) == repr(expected.sampled)  # a NaN is not equal to itself
        sampled_nan = {c.slot for c in batch.chunks if c.samples} & {
            slot for slot, sampled in zip(batch.sampled_slots, outcome.sampled, strict=True) if sampled.token_id < 0
        }
        reported, expected_slots = (
            [c.slot for c, is_broken in zip(batch.chunks, one.has_nan, strict=bool(one.has_nan)) if is_broken]
            for one in (outcome, expected)
        )
        assert {*reported} | sampled_nan == {*expected_slots} | sampled_nan
        slots = recorded._graphs.slots.tensors
        sampled_slots = np.array(batch.sampled_slots, np.int64)
        assert np.array_equal(recorded._slots.lengths, eager._slots.lengths)
        assert slots.lengths[sampled_slots].tolist() == eager._slots.lengths[sampled_slots].tolist()
        assert torch.equal(recorded._last_tokens[:SLOTS], eager._last_tokens[:SLOTS])
        one, other = recorded._cache.data, eager._cache.data
        assert bool(((one == other) | one.isnan() | other.isnan()).all())  # NaN propagates
        histories.take(batch, outcome)
        tokens += len(outcome.sampled)
        broken += len(reported) + len(sampled_nan)
    assert broken > STEPS / 40 and tokens > STEPS and STEPS / 20 < eager_steps < STEPS / 2


def test_a_recorded_step_masks_tokens_itself(checkpoints):
    """Only a row without an allowed token is sampled again, from logits that are computed again."""
    kernels = ReferenceKernels()
    model = checkpoints["llama"].load()
    recorded = make_runner(model, kernels, torch.float32, lambda step: step)
    recorded.record(lambda *_: None)
    masked, reported, constrained = steps_with_masks(recorded, 60)
    assert masked == reported and 0 < len(reported) < constrained / 2


def test_prompts_that_need_more_tiles_than_rows_use_a_larger_recording(checkpoints):
    """Many short chunks do not share tiles. A batch that exceeds the largest recording runs outside of one."""
    kernels = ReferenceKernels()
    model = checkpoints["llama"].load()
    recorded = make_runner(model, kernels, torch.float32, lambda step: step)
    recorded.record(lambda *_: None)
    find, largest = recorded._graphs.find, recorded._graphs.max_rows
    for tiles in (1, 1 + MAX_SHORT_TILES, 2 + MAX_SHORT_TILES, 4 + MAX_SHORT_TILES):
        shape = find(16, 100, False, tiles)
        assert shape is not None and shape.rows >= 16 and shape.tiles >= tiles
    assert find(16, 100, False, 1).rows == 16
    assert find(16, 100, False, -(-largest // MAX_TILE_QUERIES) + MAX_SHORT_TILES + 1) is None
    assert find(largest + 1, 100, False, 1) is None
    assert find(SLOTS + 1, 100, False, 0) is None, "without prompts there is at most one row per slot"


def test_a_last_token_alone_is_computed_like_a_decode_row(checkpoints):
    """A resumed request with all but its last token in the cache needs no tiles."""
    model = checkpoints["llama"].load()
    recorded = make_runner(model, ReferenceKernels(), torch.float32, lambda step: step)
    recorded.record(lambda *_: None)
    join = Join(0, (5, 6, 7, 8), 4, 0, PLAIN[0], (0,))
    recorded.launch(Batch(step=0, joins=(join,), chunks=(Chunk(0, 0, 3, False),)))()
    seen = []
    find = recorded._graphs.find
    recorded._graphs.find = lambda *args, **options: seen.append(find(*args, **options)) or seen[-1]
    outcome = recorded.launch(Batch(step=0, chunks=(Chunk(0, 3, 1, True),)))()
    assert [shape.prompts for shape in seen] == [False]
    assert len(outcome.sampled) == 1 and not any(outcome.has_nan)


def test_chunks_of_one_prompt_run_one_after_another(checkpoints):
    """The chunks have equal lengths and slots, so that only positions and tokens differ."""
    model = checkpoints["llama"].load()
    recorded, eager = (
        make_runner(model, ReferenceKernels(), torch.float32, capture) for capture in (lambda step: step, None)
    )
    recorded.record(lambda *_: None)
    join = Join(0, tuple(range(10, 60)), 50, 0, PLAIN[0], (0, 1, 2, 3))
    for start in (0, 16, 32):
        batch = Batch(step=0, joins=(join,) if start == 0 else (), chunks=(Chunk(0, start, 16, False),))
        for runner in (recorded, eager):
            runner.launch(batch)()
    assert torch.equal(recorded._cache.data, eager._cache.data)


def test_recording_does_not_modify_slots_or_pages(checkpoints):
    """Each step runs once, with padding only, before it is recorded."""
    runner = make_runner(checkpoints["llama"].load(), ReferenceKernels(), torch.float32, lambda step: (step(), step)[1])
    slots = runner._graphs.slots.tensors
    runner._cache.data.fill_(3.0)
    before = (slots.lengths.clone(), slots.last_tokens.clone(), runner._cache.data.clone())
    runner.record(lambda *_: None)
    after = (slots.lengths, slots.last_tokens, runner._cache.data)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
