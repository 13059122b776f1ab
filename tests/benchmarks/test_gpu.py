"""The GPU benchmark, as far as it can be tested without a GPU: it keeps its results, does not hang, and runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_engine, gpu_transformers, results
from benchmarks.device import Device
from benchmarks.engines import Build, Engines
from benchmarks.gpu_engine import EngineMarks
from benchmarks.gpu_kernels import KernelMarks
from benchmarks.gpu_transformers import Measured
from benchmarks.sections import DEVICE_FAILED, Sections
from benchmarks.shapes import TINY
from engine.execution.runner import ModelRunner
from kernels.paging import PagedKV
from kernels.triton import pdl
from tests.benchmarks.conftest import BUILD, endless


def broken() -> None:
    raise ZeroDivisionError("nothing to divide by")


def test_a_gpu_is_measured_in_a_process_that_may_crash(monkeypatch: pytest.MonkeyPatch):
    """The process receives the given options."""
    started = []
    monkeypatch.setattr(gpu, "in_processes", lambda command, seconds: started.append((command, seconds)) or 7)
    monkeypatch.setattr("sys.argv", ["gpu", "--seconds", "9", "--only", "mixed"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.main() == 7
    command = [sys.executable, "-m", "benchmarks.gpu", "--seconds", "9", "--only", "mixed"]
    assert started == [(command, 9.0)]


def test_a_process_reports_that_its_device_has_failed(monkeypatch: pytest.MonkeyPatch):
    """Its exit status differs from that of a failed section."""
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--only", "elementwise"])
    assert gpu.main() == 0
    monkeypatch.setattr(Device, "works", lambda device: False)
    assert gpu.main() == DEVICE_FAILED


def test_without_a_gpu_the_benchmark_reports_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The error is one line."""
    monkeypatch.setattr("sys.argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert "finds no CUDA device" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("fault", [None, RuntimeError("an illegal memory access was encountered")])
def test_a_device_that_cannot_finish_its_work_has_failed(device: Device, monkeypatch: pytest.MonkeyPatch, fault):
    """The error is raised by torch's synchronisation."""

    def synchronize(which: torch.device) -> None:
        if fault:
            raise fault

    monkeypatch.setattr(device, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert device.works() is (fault is None)


def test_attention_is_measured_as_in_a_recorded_step(device: Device, monkeypatch: pytest.MonkeyPatch):
    """All layers are in one recording, each with its own keys and values."""
    read = []

    def times(*calls: Callable[[], object], share: bool = False) -> list[float]:
        assert share
        for call in calls:
            call()
        return [1.0]

    def attention(q: torch.Tensor, kv: PagedKV, *more: object) -> torch.Tensor:
        read.append(kv.k.data_ptr())
        return q

    monkeypatch.setattr(device, "times", times)
    monkeypatch.setattr(device.kernels, "decode_attention", attention)
    KernelMarks(device, lambda what, **row: None).decode_attention(TINY, 3, 70, 16)
    assert len(set(read)) == len(read) == TINY.layers


def test_rows_of_an_engine_report_early_launch(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Profiles are measured without early launch, because kernel times would overlap, and steps with and without."""
    monkeypatch.setattr(pdl, "supports_pdl", lambda device: True)
    sections = endless()
    marks = gpu.Marks(device, sections)
    marks.engine(BUILD, marks.of_engines.decode_step, 3, 20, 4)
    marks.engine(replace(BUILD, early_launch=False), marks.of_engines.kernels_of_a_step, 3, 20)
    marks.run()
    assert not sections.failed
    assert [(row["what"], row["early_launch"]) for row in sections.rows if row["what"] != "kernel"] == [
        ("engine", True), ("decode step", True), ("engine", False), ("profile", False),
    ]  # fmt: skip
    assert pdl.supports_pdl(device.device)  # the state is restored for later users


def test_rows_that_end_during_a_measurement_are_refused(device: Device, monkeypatch: pytest.MonkeyPatch):
    """A step of fewer rows than reported is refused."""
    monkeypatch.setattr(gpu_engine, "SPARE_TOKENS", -5)
    marks = EngineMarks(device, lambda what, **row: None)
    with pytest.raises(RuntimeError, match="only 0 of 3 rows are left"):
        marks.decode_step(Engines(device, endless()).get(BUILD), TINY, 3, 20, 4, runs=2)


def test_rows_of_a_previous_measurement_do_not_count(device: Device):
    """A batch as large as the previous one counts only when its own prompts are computed."""
    engine, found = Engines(device, endless()).get(BUILD), []
    marks = EngineMarks(device, lambda what, **row: found.append(row["context"]))
    for _ in range(2):
        marks.decode_step(engine, TINY, 3, 200, 2, runs=1)
    assert found[0] == found[1]


def test_a_recorded_step_is_replayed_with_padding_only(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Requests that follow are computed normally."""
    monkeypatch.setattr("engine.build._capture", lambda config, device: lambda step: step)
    monkeypatch.setattr(ModelRunner, "runs_ahead", True)
    rows = []
    marks = EngineMarks(device, lambda what, **row: rows.append(what))
    engine = Engines(device, endless()).get(BUILD)
    marks.decode_step(engine, TINY, 3, 20, 2)
    for prompt in (0, 100):
        marks.recorded_step(engine, TINY, 4, 20, prompt, replays=3)
    marks.decode_step(engine, TINY, 3, 20, 2)
    assert rows == ["decode step", "recorded step", "recorded step", "decode step"]
    assert not engine.has_work and engine.scheduler.kv_manager.pool.held == 0


def test_the_bound_of_a_decode_step_uses_the_context_at_that_time(device: Device):
    """It is not that of the initial contexts."""
    found = []
    marks = EngineMarks(device, lambda what, **row: found.append(row))
    marks.decode_step(Engines(device, endless()).get(BUILD), TINY, 3, 20, 10, runs=2)
    (row,) = found
    assert 30 < row["context"] < 40
    bound = TINY.decode_bytes(3, 3 * row["context"]) / device.ceilings.bytes_per_second
    assert row["bound_ms"] == pytest.approx(1000 * bound)


def test_the_largest_gap_of_interactive_requests_is_reported(device: Device, monkeypatch: pytest.MonkeyPatch):
    """The maximum is over all requests in that state."""
    answers = iter([(0.5, [0.1])] + [(0.1, [0.01, 0.02]), (0.2, [0.03, 0.01])] * 2)
    monkeypatch.setattr(gpu_engine, "_ask", lambda *_: next(answers))
    found = []
    marks = EngineMarks(device, lambda what, **row: found.append(row))
    marks.people(Engines(device, endless()).get(BUILD), TINY, 20, 3, asks=2, bulk=(20, 100))
    for state in ("idle", "loaded"):
        assert found[0][f"{state}_largest_gap_ms"] == pytest.approx(30.0)
        assert found[0][f"{state}_ttft_ms"]["max"] == pytest.approx(200.0)


def test_results_are_also_saved_in_the_given_folder(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Files contain rows, failures and skipped sections."""
    default_folder, extra_folder = tmp_path / "here", tmp_path / "there"
    extra_folder.mkdir()
    card = SimpleNamespace(name="a card", multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(results, "FOLDER", default_folder)
    sections = Sections(partial(gpu.keep, device, extra_folder, ""), 60.0)
    sections.run("first", lambda: sections.add("speed", us=1.0))
    sections.run("second", broken)
    kept = [json.loads((folder / "gpu.json").read_text()) for folder in (default_folder, extra_folder)]
    assert kept[0] == kept[1]
    assert kept[0]["rows"] == sections.rows and list(kept[0]["summary"]["failed"]) == ["second"]


def test_a_selection_does_not_replace_results_of_a_whole_run(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A selection has its own file, which names the expression."""
    card = SimpleNamespace(name="a card", multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    for only in ("", "peo.le"):
        Sections(partial(gpu.keep, device, None, only), 60.0).run("people", lambda: None)
    settings = {path.name: json.loads(path.read_text())["settings"] for path in tmp_path.iterdir()}
    assert settings.keys() == {"gpu.json", "gpu_only.json"}
    assert "only" not in settings["gpu.json"] and settings["gpu_only.json"]["only"] == "peo.le"


def test_results_name_their_commit_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine without git reports an unknown commit, unless an environment variable names it."""
    monkeypatch.delenv("CAROUSEL_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.origin()["commit"] == "unknown"
    monkeypatch.setenv("CAROUSEL_COMMIT", "0123456789ab")
    assert results.origin()["commit"] == "0123456789ab"


def test_every_kind_of_row_can_be_measured(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Tiny shapes run on a CPU, where the figures are meaningless; transformers, which takes a minute there, is
    replaced."""
    ways = {"attention": "sdpa", "cuda_graphs": [False, True]}
    monkeypatch.setattr(gpu_transformers, "measure", lambda *_, **__: Measured(ways, [100.0]))
    sections = endless()
    marks = gpu.Marks(device, sections)
    gpu.on_cpu(marks)
    marks.run()
    assert not sections.failed and not sections.left_out
    measured = {row["what"] for row in sections.rows}
    assert {"decode attention", "prefill attention", "matrix", "rms_norm", "silu_mul", "sample"} < measured
    assert {"decode step", "kernel", "swapping", "lone prompt", "prefill", "mixed", "people", "transformers"} < measured
    (transformers_row,) = (row for row in sections.rows if row["what"] == "transformers")
    assert transformers_row["times_that"] > 0 and ways.items() <= transformers_row.items()
    built = {"early_launch", "recorded"}
    of_engines = {row["what"] for row in sections.rows if built <= row.keys()}
    assert {"decode step", "prefill", "mixed", "people", "swapping", "beside transformers"} < of_engines


def test_sections_are_run_by_their_names(device: Device):
    """An expression selects the sections that it matches; without a match the error lists all names."""
    sections = endless()
    marks = gpu.Marks(device, sections)
    gpu.on_cpu(marks)
    with pytest.raises(LookupError, match=r"'nonsense' matches none of these names:(?s:.*)\nelementwise tiny 3\n"):
        marks.select("nonsense")
    marks.select("^(elementwise|lone_prompt).*tiny")
    marks.run()
    assert {row["what"] for row in sections.rows} == {"rms_norm", "silu_mul", "lone prompt"}


def test_a_selection_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """An invalid expression is refused too."""
    for only, message in (("nonsense", "matches none of these names:\ndecode_attention"), ("(", "unterminated")):
        monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--only", only])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert ended.value.code == 2 and message in capsys.readouterr().err


def test_every_section_on_a_gpu_has_a_name_of_its_own(device: Device):
    """Otherwise a selection or failure of one section would apply to both; different engines have different names."""
    marks = gpu.Marks(device, endless())
    gpu.on_gpu(marks)
    for build in ("Llama-3.2-1B", "Llama-3.2-1B batch_invariant=True"):
        assert any(name.startswith(f"decode_step {build} 32 512") for name in marks.planned)
    with pytest.raises(ValueError, match="Two sections"):
        gpu.on_gpu(marks)


def test_main_figures_are_measured_first(device: Device, monkeypatch: pytest.MonkeyPatch):
    """The project's main figures come before explanations, and each engine for them is built once. Profiles come last,
    because the profiler stays active in the process."""
    builds: list[Build] = []
    marked: list[list[Build]] = []
    engine, variants_of = gpu.Marks.engine, gpu.variants_of

    def planned(marks: gpu.Marks, build: Build, *measure: Any, **more: Any) -> None:
        builds.append(build)
        engine(marks, build, *measure, **more)

    def explained(*of: Any) -> None:
        marked.append(list(builds))
        variants_of(*of)

    monkeypatch.setattr(gpu.Marks, "engine", planned)
    monkeypatch.setattr(gpu, "variants_of", explained)
    marks = gpu.Marks(device, endless())
    gpu.on_gpu(marks)
    names = list(marks.planned)
    llama, qwen = "Llama-3.2-1B", "Qwen3-0.6B"
    expected = [
        f"decode_attention {llama} 32 2048",
        f"decode_step {llama} 1 512",
        f"decode_step {llama} 256 512",
        f"prefill {llama} 2048",
        f"mixed {llama} 256",
        f"transformers {llama}",
        f"people {llama} budget=None 2048",
        f"decode_step {llama} batch_invariant=True 256 512",
        f"prefill {llama} batch_invariant=True 2048",
        f"decode_step {llama} early_launch=False 32 512",
        f"prefill {qwen} 2048",
        f"mixed {qwen} 256",
        f"decode_step {qwen} 1 512",
        f"decode_attention {qwen} 128 2048",
        f"decode_attention_as {llama}",
        f"sampler {llama}",
        f"swapping {llama}",
        f"people {qwen} budget=None",
        f"sampler {qwen}",
        f"kernels_of_a_step {llama} early_launch=False",
    ]
    positions = [next(at for at, name in enumerate(names) if f"{name} ".startswith(f"{one} ")) for one in expected]
    assert positions == sorted(positions)
    profiled = [at for at, name in enumerate(names) if name.startswith("kernels_of_a_step ")]
    assert profiled == list(range(len(names) - len(profiled), len(names)))
    assert len([build for build, _ in groupby(marked[0])]) == len(set(marked[0])) == 6


def test_the_cost_of_batch_invariance_is_reported_if_both_were_measured(device: Device):
    """Rows of the same sizes are compared."""
    sections = endless()
    marks = gpu.Marks(device, sections)
    for build in (BUILD, replace(BUILD, batch_invariant=True)):
        marks.engine(build, marks.of_engines.decode_step, 3, 20, 2)
        marks.engine(build, marks.of_engines.prefill, 20, 2)
    marks.engine(replace(BUILD, batch_invariant=True), marks.of_engines.decode_step, 2, 20, 2)
    marks.run()
    usual, rows = ([row for row in sections.rows if row.get("batch_invariant") is kind] for kind in (False, True))
    assert [row["times_usual"] for row in rows[:2]] == [
        row["ms"]["median"] / other["ms"]["median"] for row, other in zip(rows, usual, strict=False)
    ]
    assert len(rows) == 3 and not any("times_usual" in row for row in (*usual, rows[2]))


def test_batch_invariance_is_measured_where_the_default_is(device: Device):
    """Otherwise there would be nothing to compare with."""
    marks = gpu.Marks(device, endless())
    gpu.on_gpu(marks)
    found = [name for name in marks.planned if "batch_invariant=True" in name and not name.startswith("engine")]
    assert len(found) >= 5
    assert all(name.replace(" batch_invariant=True", "") in marks.planned for name in found)
