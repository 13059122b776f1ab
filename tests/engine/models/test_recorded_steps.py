"""Recorded steps beside the same steps operation by operation: the same tokens, slots, keys and values. Recording is
left out: the functions are called again."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from engine.execution import graphs
from engine.execution.graphs import SHORT_TILES
from engine.execution.models import load_model
from engine.scheduling.batch import Batch, Chunk, Join
from engine.types import SamplingParams
from kernels.query_tiles import QUERIES
from kernels.reference.backend import ReferenceKernels
from tests.engine.models.checkpoints import Checkpoint
from tests.engine.models.histories import BAD, DEMANDING, PLAIN, SLOTS, Histories, make_runner


@pytest.mark.parametrize("asked", [PLAIN, PLAIN * 4 + DEMANDING], ids=["plain", "demanding"])
@pytest.mark.parametrize("checkpoint", ["llama", "mistral-window", "qwen3"], indirect=True)
def test_a_recorded_step_is_its_operations_one_by_one(
    checkpoint: Checkpoint, asked: tuple[SamplingParams, ...], monkeypatch: pytest.MonkeyPatch
):
    """Rows that decode and pieces of prompts in any company, some too long for a recording, some with a NaN, some who
    ask for more than filters; on the device's side of the slots too."""
    monkeypatch.setattr(graphs, "PROMPT_ROWS", 150)
    model = load_model(checkpoint.path, torch.float32, torch.device("cpu"), lambda *_: None, kernels=ReferenceKernels())
    with torch.inference_mode():
        model._weights.embedding[BAD] = math.nan
    recorded, one_by_one = (
        make_runner(model, ReferenceKernels(), torch.float32, capture) for capture in (lambda step: step, None)
    )
    recorded.record(lambda *_: None)
    histories = Histories(random.Random(len(asked)), asked)
    apart = broken = tokens = 0
    compute = recorded._compute

    def computed(batch, drawn, broken) -> None:
        nonlocal apart
        assert not batch.decodes
        apart += 1
        compute(batch, drawn, broken)

    recorded._compute = computed
    for _ in range(400):
        batch = histories.next()
        outcome, expected = (runner.launch(batch)() for runner in (recorded, one_by_one))
        assert repr(outcome.sampled) == repr(expected.sampled)  # a NaN is not equal to itself
        without = {c.slot for c in batch.chunks if c.samples} & {
            slot for slot, sampled in zip(batch.sampled, outcome.sampled, strict=True) if sampled.token_id < 0
        }
        told, wanted = (
            [c.slot for c, is_broken in zip(batch.chunks, one.broken, strict=bool(one.broken)) if is_broken]
            for one in (outcome, expected)
        )
        assert {*told} | without == {*wanted} | without
        slots = recorded._graphs.slots.tensors
        there = np.array(batch.sampled, np.int64)
        assert np.array_equal(recorded._slots.lengths, one_by_one._slots.lengths)
        assert slots.lengths[there].tolist() == one_by_one._slots.lengths[there].tolist()
        assert torch.equal(recorded._last_tokens[:SLOTS], one_by_one._last_tokens[:SLOTS])
        one, other = recorded._cache.data, one_by_one._cache.data
        assert bool(((one == other) | one.isnan() | other.isnan()).all())  # a NaN spoils what is computed with it
        histories.take(batch, outcome)
        tokens += len(outcome.sampled)
        broken += len(told) + len(without)
    assert broken > 10 and tokens > 400 and 20 < apart < 200


def test_prompts_that_need_more_tiles_than_rows_are_in_a_larger_recording(checkpoints):
    """Many short pieces: tiles are theirs alone. What does not fit into the largest one is read by itself."""
    kernels = ReferenceKernels()
    model = checkpoints["llama"].load()
    recorded = make_runner(model, kernels, torch.float32, lambda step: step)
    recorded.record(lambda *_: None)
    find, largest = recorded._graphs.find, recorded._graphs.most_rows
    for tiles in (1, 1 + SHORT_TILES, 2 + SHORT_TILES, 4 + SHORT_TILES):
        shape = find(16, 100, False, tiles)
        assert shape is not None and shape.rows >= 16 and shape.tiles >= tiles
    assert find(16, 100, False, 1).rows == 16
    assert find(16, 100, False, -(-largest // QUERIES) + SHORT_TILES + 1) is None
    assert find(largest + 1, 100, False, 1) is None
    assert find(SLOTS + 1, 100, False, 0) is None, "without prompts there is a row for each slot at most"


def test_a_last_token_alone_is_like_a_row_that_decodes(checkpoints):
    """Whoever comes back with all but its last token in the cache needs no tiles."""
    model = checkpoints["llama"].load()
    recorded = make_runner(model, ReferenceKernels(), torch.float32, lambda step: step)
    recorded.record(lambda *_: None)
    join = Join(0, (5, 6, 7, 8), 4, 0, PLAIN[0], (0,))
    recorded.launch(Batch(step=0, joins=(join,), chunks=(Chunk(0, 0, 3, False),)))()
    seen = []
    find = recorded._graphs.find
    recorded._graphs.find = lambda *args: seen.append(find(*args)) or seen[-1]
    outcome = recorded.launch(Batch(step=0, chunks=(Chunk(0, 3, 1, True),)))()
    assert [shape.prompts for shape in seen] == [False]
    assert len(outcome.sampled) == 1 and not any(outcome.broken)


def test_pieces_of_one_prompt_are_read_one_after_the_other(checkpoints):
    """Of one length and of one slot, so that nothing but their positions and tokens is another."""
    model = checkpoints["llama"].load()
    recorded, one_by_one = (
        make_runner(model, ReferenceKernels(), torch.float32, capture) for capture in (lambda step: step, None)
    )
    recorded.record(lambda *_: None)
    join = Join(0, tuple(range(10, 60)), 50, 0, PLAIN[0], (0, 1, 2, 3))
    for start in (0, 16, 32):
        batch = Batch(step=0, joins=(join,) if start == 0 else (), chunks=(Chunk(0, start, 16, False),))
        for runner in (recorded, one_by_one):
            runner.launch(batch)()
    assert torch.equal(recorded._cache.data, one_by_one._cache.data)


def test_recording_leaves_slots_and_pages_alone(checkpoints):
    """Each step is made once before it is recorded: for nobody."""
    runner = make_runner(checkpoints["llama"].load(), ReferenceKernels(), torch.float32, lambda step: (step(), step)[1])
    slots = runner._graphs.slots.tensors
    runner._cache.data.fill_(3.0)
    before = (slots.lengths.clone(), slots.last_tokens.clone(), runner._cache.data.clone())
    runner.record(lambda *_: None)
    after = (slots.lengths, slots.last_tokens, runner._cache.data)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
