"""Construction of measured engines, as far as it can be tested without a GPU."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines as measured_engines
from benchmarks import gpu, gpu_engine
from benchmarks.device import Device
from benchmarks.engines import Build, Engines
from benchmarks.gpu_engine import EngineMarks
from benchmarks.gpu_kernels import KernelMarks
from benchmarks.sections import Sections
from benchmarks.shapes import TINY
from engine.config import EngineConfig
from engine.engine import Engine
from kernels.triton import pdl
from tests.benchmarks.conftest import BUILD, CPU, endless


def test_an_engine_without_progress_is_abandoned(device: Device, monkeypatch: pytest.MonkeyPatch):
    """The error contains the engine's state, and the next section gets another engine."""
    monkeypatch.setattr(gpu_engine, "MAX_STEPS", 50)
    engines = Engines(device, endless())
    engine = engines.get(BUILD)
    engine.submit(gpu_engine.make_request("a", TINY.vocab, 20, 1000, 0))
    with pytest.raises(RuntimeError, match=r"50 steps .* \(0, 1, 0\) run.*last step had 1 rows"):
        gpu_engine.drain(engine)
    assert engines.get(BUILD) is not engine


def test_an_engine_is_kept_until_another_one_is_requested(device: Device):
    """Then nothing of the old one remains."""
    engines = Engines(device, endless())
    engine = engines.get(BUILD)
    assert engines.get(Build(TINY, slots=4, budget=64, page_size=16)) is engine
    gone = weakref.ref(engine)
    del engine
    other = engines.get(Build(TINY, slots=4, budget=None, page_size=16))
    assert gone() is None and other.config.max_num_batched_tokens is None


def test_an_engine_s_objects_are_frozen_for_garbage_collection(device: Device):
    """As in the engine process, they are frozen for the garbage collector as long as the engine exists."""
    engines, before = Engines(device, endless()), gc.get_freeze_count()
    engines.get(BUILD)
    assert gc.get_freeze_count() > before
    engines.drop()
    assert gc.get_freeze_count() == 0


def test_no_kernel_of_an_engine_is_launched_early_if_disabled(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Neither recorded nor later launches are early. Afterwards early launch is available again where the device
    supports it."""
    monkeypatch.setattr(pdl, "supports_pdl", lambda device: True)
    launches, build_engine = [], measured_engines.build_engine

    def built(config: EngineConfig) -> Engine:
        launches.append(pdl.pdl_options(CPU))
        return build_engine(config)

    monkeypatch.setattr(measured_engines, "build_engine", built)
    engines, reported = Engines(device, endless()), []
    for wanted in (False, True):
        engines.get(replace(BUILD, early_launch=wanted))
        launches.append(pdl.pdl_options(CPU))
        reported.append(engines.early_launch)
    assert launches == 2 * [{"USE_PDL": False}] + 2 * [{"USE_PDL": True, "launch_pdl": True}] and reported == [
        False,
        True,
    ]
    monkeypatch.setattr(pdl, "supports_pdl", lambda device: False)
    engines.drop()
    engines.get(BUILD)
    assert not engines.early_launch  # the device does not support it


@pytest.mark.parametrize("failing_features", [("early_launch",), ("early_launch", "recorded")])
def test_an_engine_that_cannot_be_built_is_built_with_fewer_features(
    device: Device, monkeypatch: pytest.MonkeyPatch, failing_features: tuple[str, ...]
):
    """Early launch is disabled first, then recordings, with memory released in between. Rows report it, and the failed
    configuration is not tried again."""
    monkeypatch.setattr(pdl, "supports_pdl", lambda device: True)
    tried: list[Build | str] = []
    monkeypatch.setattr(device, "release", lambda: tried.append("release"))
    made = Engines._made

    def make_or_fail(engines: Engines, build: Build) -> Engine:
        tried.append(build)
        if any(getattr(build, what) for what in failing_features):
            raise ValueError("no such instruction")
        return made(engines, build)

    monkeypatch.setattr(Engines, "_made", make_or_fail)
    sections = endless()
    marks = gpu.Marks(device, sections)
    marks.engine(BUILD, marks.of_engines.lone_prompt, 20, 2)
    marks.kernel(marks.of_kernels.elementwise, TINY, 3)  # the engine is released
    marks.engine(BUILD, marks.of_engines.lone_prompt, 30, 2)
    marks.run()
    plain = replace(BUILD, early_launch=False)
    attempts = [BUILD, plain, replace(plain, recorded=False)][: len(failing_features) + 1]
    expected = [step for attempt in (*attempts, attempts[-1]) for step in (attempt, "release")]
    assert tried == expected and not sections.failed and not sections.left_out
    assert [row["early_launch"] for row in sections.rows if row["what"] == "lone prompt"] == [False, False]
    why = "ValueError: no such instruction"
    assert sections.given_up == {f"engine {attempt}": why for attempt in attempts[:-1]}


def test_an_engine_that_cannot_be_built_at_all_is_not_tried_again(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Its sections are skipped with the reason."""
    tried: list[Build] = []

    def made(engines: Engines, build: Build) -> Engine:
        tried.append(build)
        raise ValueError("no memory")

    monkeypatch.setattr(Engines, "_made", made)
    sections = endless()
    marks = gpu.Marks(device, sections)
    for tokens in (20, 30):
        marks.engine(BUILD, marks.of_engines.lone_prompt, tokens, 2)
    marks.run()
    assert len(tried) == len(set(tried)) == 3 and len(sections.left_out) == 3
    assert all("recorded=False is no longer used: ValueError: no memory" in why for why in sections.left_out.values())


def test_no_engine_is_built_on_a_lost_device(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Disabling other features is not tried, because they are not the cause."""
    monkeypatch.setattr(pdl, "supports_pdl", lambda device: True)
    monkeypatch.setattr(device, "works", lambda: False)
    tried: list[Build] = []

    def made(engines: Engines, build: Build) -> Engine:
        tried.append(build)
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(Engines, "_made", made)
    sections = endless(device.works)
    marks = gpu.Marks(device, sections)
    marks.engine(BUILD, marks.of_engines.lone_prompt, 20, 2)
    marks.run()
    assert tried == [BUILD] and sections.ended_by == f"engine {BUILD}"
    assert sections.given_up == {"early launch": f"the device failed in engine {BUILD}"}


def test_a_feature_that_loses_the_device_is_not_used_again(
    device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """In later processes a failed kernel measurement is not tried with other sizes, and no engine uses early launch
    while it may be the cause."""
    monkeypatch.setattr(pdl, "supports_pdl", lambda device: True)
    works, measured = [True], []

    def elementwise(*_: Any) -> None:
        works[0] = False
        raise RuntimeError("an illegal memory access was encountered")

    def lone_prompt(of_engines: EngineMarks, engine: Engine, *_: Any) -> None:
        slots, is_recorded = engine.config.max_num_seqs, not engine.config.enforce_eager
        measured.append((slots, marks._engines.early_launch, is_recorded))
        works[0] = not (marks._engines.early_launch or (slots == 4 and is_recorded))

    monkeypatch.setattr(KernelMarks, "elementwise", elementwise)
    monkeypatch.setattr(EngineMarks, "lone_prompt", lone_prompt)
    ended_by = []
    for _ in range(4):
        works[0] = True
        sections = Sections(lambda so_far: None, 600.0, works=lambda: works[0], record=tmp_path / "record.json")
        marks = gpu.Marks(device, sections)
        for rows in (3, 4):
            marks.kernel(marks.of_kernels.elementwise, TINY, rows)
        for build, tokens in product((BUILD, replace(BUILD, slots=5)), (20, 30, 40)):
            marks.engine(build, marks.of_engines.lone_prompt, tokens, 2)
        marks.run()
        ended_by.append(sections.ended_by)
    lost = ["elementwise tiny 3", f"lone_prompt {BUILD} 20 2", f"lone_prompt {BUILD} 30 2"]
    assert ended_by == [*lost, None] and list(sections.failed) == lost
    assert list(sections.left_out) == ["elementwise tiny 4"]
    plain = replace(BUILD, early_launch=False)
    assert list(sections.given_up) == ["elementwise tiny", "early launch", f"engine {plain}"]
    assert measured == [(4, True, True), (4, False, True), (4, False, False), *[(5, False, True)] * 3]
