"""Log-probabilities of the tokens of a prompt."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.engine import Engine
from engine.execution.graphs import Shape
from engine.execution.runner import ModelRunner
from engine.types import PreemptionMode, PromptEvent, PromptToken, Request, SamplingParams, TokenEvent
from tests.engine.same import make_engine

PROMPTS = [tuple(range(5 + i, 5 + i + length)) for i, length in enumerate((2, 3, 40, 90, 200))]


def requests(alternatives: int = 3, n: int = 1) -> list[Request]:
    sampling = SamplingParams(max_tokens=6, prompt_logprobs=alternatives, seed=1)
    return [Request(id=f"r{i}", prompt=prompt, sampling=sampling, n=n) for i, prompt in enumerate(PROMPTS)]


def run(engine: Engine, submitted: list[Request], before_step=lambda: None) -> dict[str, list[PromptToken | None]]:
    """Return the prompt tokens of each request; the first has none."""
    found: dict[str, list[PromptToken | None]] = {r.id: [None] * len(r.prompt) for r in submitted}
    for request in submitted:
        engine.submit(request)
    while engine.has_work:
        before_step()
        for event in engine.step():
            if isinstance(event, PromptEvent):
                for position, token in enumerate(event.tokens, event.start):
                    assert found[event.request_id][position] in (None, token)
                    found[event.request_id][position] = token
            elif isinstance(event, TokenEvent):
                assert None not in found[event.request_id][1:], "the prompt is reported before the first token"
    return found


@pytest.fixture(scope="module")
def expected(demo: Path) -> dict[str, list[PromptToken | None]]:
    return run(make_engine(demo), requests())


def test_they_equal_those_of_transformers(demo: Path):
    """Each token's log-probability, and the best alternatives in order; keys and values are not rounded."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32)
    found = run(make_engine(demo, kv_cache_dtype="float32"), requests())
    for prompt, tokens in zip(PROMPTS, found.values(), strict=True):
        with torch.no_grad():
            log_probs = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
        assert tokens[0] is None
        for position, token in enumerate(tokens[1:], 1):
            assert token is not None
            row = log_probs[position - 1]
            assert token.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-3)
            assert [a.logprob for a in token.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("n", [1, 2])
def test_chunks_a_cache_and_further_choices_change_nothing(demo: Path, expected, chunk: int, n: int):
    """A cached prompt is computed again, because its logits are not cached."""
    engine = make_engine(demo, prefill_chunk=chunk)
    assert run(engine, requests(n=n)) == expected
    assert run(engine, requests(n=n)) == expected


@pytest.mark.parametrize("mechanism", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
def test_preemption_changes_nothing(demo: Path, expected, mechanism: PreemptionMode):
    """Prompts that are preempted between two chunks are reported completely."""
    engine, steps = make_engine(demo, prefill_chunk=16), itertools.count()

    def preempt_all() -> None:
        if next(steps) % 4 == 3:
            for sequence in list(engine.scheduler.running):
                engine.scheduler.preempt(sequence, 0.0, mechanism=mechanism)

    assert run(engine, requests(), preempt_all) == expected


def test_requests_beside_them_keep_their_texts(demo: Path, expected):
    """Rows of the same steps are not changed."""
    plain = [replace(r, id=f"p{r.id}", sampling=replace(r.sampling, prompt_logprobs=None)) for r in requests()]

    def texts(submitted: list[Request]) -> dict[str, list[int]]:
        engine, found = make_engine(demo), {}
        for request in submitted:
            engine.submit(request)
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, TokenEvent):
                    found.setdefault(event.request_id, []).append(event.token_id)
        return found

    alone = texts(plain)
    together = texts([*requests(), *plain])
    assert {key: together[key] for key in alone} == alone


@pytest.mark.no_cover  # thousands of steps through lines that other tests cover
def test_a_recording_of_steps_leaves_their_prompts_out(demo: Path, expected, replays: list[Shape], monkeypatch):
    """Recorded steps return no hidden states, so these chunks run operation by operation, and decode rows do not."""
    monkeypatch.undo()
    monkeypatch.setattr("engine.build._capture", lambda config, device: lambda step: step() or step)
    monkeypatch.setattr(ModelRunner, "runs_ahead", True)
    assert run(make_engine(demo), requests()) == expected
