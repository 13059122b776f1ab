"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor

from engine.execution.graphs import MAX_PROMPT_ROWS, Shape
from engine.execution.prompt_logprobs import PromptLogProbs
from engine.execution.runner import ModelRunner
from engine.execution.sampler import SampledTokens
from engine.execution.token_masks import StepMasks
from engine.scheduling.batch import Batch


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Return the shapes of replayed decode recordings, with the behaviour of a GPU: state stays on the device, rows are
    padded, and steps run ahead. Recording itself is replaced. Every decode step must be a replay; only prompts longer
    than a recording run outside of one."""
    replayed: list[Shape] = []

    def capture(step: partial[None]) -> Callable[[], None]:
        def replay() -> None:
            replayed.extend(step.args)
            step()

        step()  # a capture runs the step once, with padding rows only
        return replay

    compute = ModelRunner._compute

    def only_prompts(
        runner: ModelRunner,
        batch: Batch,
        sampled_parts: list[SampledTokens],
        has_nan: list[Tensor],
        masks: StepMasks | None,
    ) -> list[PromptLogProbs]:
        assert not batch.decodes and batch.num_tokens > MAX_PROMPT_ROWS
        return compute(runner, batch, sampled_parts, has_nan, masks)

    monkeypatch.setattr("engine.build._capture", lambda config, device: capture)
    monkeypatch.setattr(ModelRunner, "runs_ahead", True)
    monkeypatch.setattr(ModelRunner, "_compute", only_prompts)
    return replayed
