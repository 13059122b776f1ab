"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor

from engine.execution.graphs import PROMPT_ROWS, Shape
from engine.execution.runner import ModelRunner
from engine.execution.sampler import Drawn
from engine.scheduling.batch import Batch


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Shapes of the recorded steps that were replayed, as on a GPU: state that stays on the device, rows padded with
    nobody, a step ahead; recording is left out. Nothing is decoded in another way, and prompts are read in another one
    only where they are more than a recording holds."""
    replayed: list[Shape] = []

    def capture(step: partial[None]) -> Callable[[], None]:
        def replay() -> None:
            replayed.extend(step.args)
            step()

        step()  # as a capture does, with nobody in it
        return replay

    compute = ModelRunner._compute

    def only_prompts(runner: ModelRunner, batch: Batch, drawn: list[Drawn], broken: list[Tensor]) -> None:
        assert not batch.decodes and batch.num_tokens > PROMPT_ROWS
        compute(runner, batch, drawn, broken)

    monkeypatch.setattr("engine.build._capture", lambda config, device: capture)
    monkeypatch.setattr(ModelRunner, "runs_ahead", True)
    monkeypatch.setattr(ModelRunner, "_compute", only_prompts)
    return replayed
