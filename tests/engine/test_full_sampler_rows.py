"""Requests with log-probabilities or logit edits do not slow down or change the others of their batch."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.types import Request
from tests import requirements
from tests.engine.same import alone, make_engine, requests, run

pytestmark = requirements.a_compiler

FULL_SAMPLER = {
    "log-probabilities": {"logprobs": 3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "bias": {"logit_bias": {20: 3.0, 41: -100.0}},
    "minimum": {"min_tokens": 5, "stop_token_ids": (4, 9, 17)},
}
TOKEN_AND_LOG_PROBABILITIES = attrgetter("token_id", "logprob", "top")


def mixed_requests() -> list[Request]:
    """Return eight plain requests, greedy and seeded, with one of each kind of `FULL_SAMPLER` among them."""
    prompts = [[5 + i, 30, 31 + i, 60][: 2 + i % 3] for i in range(8 + len(FULL_SAMPLER))]
    built = []
    for i, request in enumerate(requests(prompts, 12)):
        plain = {"repetition_penalty": 1.0, "frequency_penalty": 0.0}
        changes = list(FULL_SAMPLER.values())[i // 3] if i % 3 == 1 else {}
        built.append(replace(request, sampling=replace(request.sampling, **(plain | changes))))
    return built


@pytest.mark.parametrize("kind", FULL_SAMPLER)
def test_a_batch_with_one_row_of_the_full_sampler_keeps_the_fused_step(demo: Path, kind: str):
    """Every step of such a batch is one call of C++."""
    first, *others = requests([[5, 6, 7], [8, 9], [10, 11]], 8)
    plain = [replace(one, sampling=replace(one.sampling, repetition_penalty=1.0)) for one in others]
    engine = make_engine(demo)
    before = engine._runner.fused_steps
    run(engine, [replace(first, sampling=replace(first.sampling, **FULL_SAMPLER[kind])), *plain])
    assert engine._runner.fused_steps - before == engine.load().counters.steps > 0


@pytest.mark.no_cover  # thousands of steps through lines that other tests cover
def test_texts_and_log_probabilities_are_equal_alone_and_beside_other_kinds(demo: Path):
    """Each kind of request, among plain ones, has the tokens and log-probabilities that it has alone."""
    expected = alone(make_engine(demo), mixed_requests(), TOKEN_AND_LOG_PROBABILITIES)
    assert len(expected) == 12 and any(token[2] for tokens in expected.values() for token in tokens)
    together = run(make_engine(demo), mixed_requests(), value_of=TOKEN_AND_LOG_PROBABILITIES)
    assert together == expected
