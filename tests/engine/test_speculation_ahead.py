"""Drafts in recorded steps that are launched before the outcome of the last one is known change no token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.engine import Engine
from engine.execution.graphs import Shape
from engine.execution.runner import ModelRunner
from engine.types import PreemptionMode, Request
from kernels.slots import NO_DRAFT_TOKEN, SlotTensors
from tests import requirements
from tests.engine.same import Texts, alone, make_engine, run
from tests.engine.test_speculation import (
    LOOKUP,
    VALUES,
    Oracle,
    all_drafts_are_tried,
    drafting,
    predicted,
    preempting,
    submitted,
    text,
    texts,
)
from tests.profiles import nightly

__all__ = ["all_drafts_are_tried", "submitted", "text", "texts"]

pytestmark = [requirements.a_compiler, pytest.mark.slow]


def look_up_texts(engine: Engine, oracle: Oracle) -> None:
    """Let the runner look up the texts of a first run in place of a slot's own."""

    def draft_slots(slots: SlotTensors, slot_ids: Tensor, limits: Tensor, drafts: Tensor, matches: Tensor) -> None:
        drafts.fill_(NO_DRAFT_TOKEN)
        for row, (slot, limit) in enumerate(zip(slot_ids.tolist(), limits.tolist(), strict=True)):
            if limit:
                sequence = engine.scheduler.slots[slot]
                assert sequence is not None and slots.tokens is not None
                length = int(slots.lengths[slot])
                known = slots.tokens[slot, :length].tolist()
                assert known[: len(sequence.tokens)] == sequence.tokens, "the device has the text of the slot"
                found = oracle.continuation(sequence, known, limit)
                drafts[row, : len(found)] = torch.tensor(found)
                matches[row] = 16

    runner = engine._runner
    assert isinstance(runner, ModelRunner) and runner._graphs is not None
    runner._graphs._kernels.draft_slots = draft_slots  # type: ignore[method-assign]


def recorded(model: Path, some: list[Request], expected: Texts, right: float | None, **options: object) -> Engine:
    """Return an engine whose drafts are looked up by its runner."""
    engine = drafting(model, some, expected, right, **options)
    if right is not LOOKUP:
        look_up_texts(engine, Oracle(some, expected, right))
    return engine


@pytest.fixture(params=[1.0, 0.7, LOOKUP], ids=["right", "often right", "looked up"])
def right(request: pytest.FixtureRequest) -> float | None:
    return request.param


@pytest.mark.parametrize("share", [0.0, 0.05], ids=["undisturbed", "preempted"])
def test_steps_with_drafts_are_launched_ahead(
    demo: Path,
    submitted: list[Request],
    texts: Texts,
    right: float | None,
    share: float,
    replays: list[Shape],
):
    """In a batch whose requests need masks, the full sampler or filters only, undisturbed and preempted at random."""
    engine = recorded(demo, submitted, texts, right, prefill_chunk=64, page_size=16)
    assert run(engine, submitted, preempting(engine, list(PreemptionMode), share), VALUES) == texts
    counters = engine.load().counters
    assert counters.accepted_tokens > (0 if right is LOOKUP else 0.3 * right**3 * counters.drafted_tokens)
    assert sum(shape.drafts for shape in replays) > (3 if right is LOOKUP else 10)


def test_alone_with_drafts_ahead(
    demo: Path, submitted: list[Request], texts: Texts, right: float | None, replays: list[Shape]
):
    """A request without others has the same text; those that need the full sampler have no drafts."""
    engine = recorded(demo, submitted, texts, right)
    assert alone(engine, submitted, VALUES) == texts
    counters = engine.load().counters
    if right is not LOOKUP:
        assert counters.accepted_tokens > 0.5 * right**3 * counters.drafted_tokens > 100


@pytest.mark.parametrize("kind", ["right", pytest.param("partly wrong", marks=nightly)])
def test_predictions_ahead(demo: Path, submitted: list[Request], texts: Texts, kind: str, replays: list[Shape]):
    """A sequence with a prediction leaves out the step after each that has drafts of it."""
    built = predicted(submitted, texts, kind)
    engine = drafting(demo, built, texts, LOOKUP)
    assert run(engine, built, value_of=VALUES) == texts
    assert engine.load().counters.accepted_tokens > 100
    assert alone(engine, built, VALUES) == texts


def test_drafts_ahead_in_a_small_pool(demo: Path, submitted: list[Request], texts: Texts, replays: list[Shape]):
    """Sequences are preempted for memory, with drafts in flight."""
    engine = recorded(demo, submitted, texts, 0.7, num_pages=36, swap_space=0.001)
    assert run(engine, submitted, value_of=VALUES) == texts
    counters = engine.load().counters
    assert sum(map(counters.paused_by, PreemptionMode)) > 0 < counters.accepted_tokens


def test_no_step_is_recorded_with_drafts_without_speculation(demo: Path, replays: list[Shape]):
    """And no text is kept on the device."""
    runner = make_engine(demo, speculation="off")._runner
    assert isinstance(runner, ModelRunner) and runner._graphs is not None
    assert not any(shape.drafts for shape in replays) and runner._graphs.slots.tensors.tokens is None
