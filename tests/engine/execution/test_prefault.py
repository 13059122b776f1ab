"""Memory is requested from the system before a step needs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.execution import runner
from engine.types import Request, SamplingParams


def test_an_idle_engine_prefaults_memory_after_the_pages_ever_allocated(demo: Path, monkeypatch: pytest.MonkeyPatch):
    """An idle engine touches memory piecewise until enough is ready, more after pages were allocated, and never an
    allocated page."""
    engine = build_engine(EngineConfig(model=str(demo), device="cpu", num_pages=64, swap_space=0.0))
    cache: torch.Tensor = engine._runner._cache.data
    page = cache[0].nbytes
    monkeypatch.setattr(runner, "PREFAULT_STEP_BYTES", 4 * page)
    monkeypatch.setattr(runner, "PREFAULT_BYTES", 10 * page)
    cache.fill_(7.0)

    def zeros() -> list[int]:
        return [number for number in range(64) if not cache[number].any()]

    assert engine.prefault_pages() and zeros() == [0, 1, 2, 3]
    while engine.prefault_pages():
        pass
    assert zeros() == list(range(10))

    engine.submit(Request(id="a", prompt=tuple(range(60)), sampling=SamplingParams(max_tokens=8)))
    while engine.has_work:
        engine.step()
    held = engine.scheduler.kv_manager.pool.num_touched
    written = cache[:held].clone()
    assert held >= 3
    while engine.prefault_pages():
        pass
    assert zeros()[-1] == held + 9
    assert torch.equal(cache[:held], written) and (cache[held + 10 :] == 7.0).all()
