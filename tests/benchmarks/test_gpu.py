"""The benchmark for GPUs, as far as it can be tried without one: it loses nothing, hangs in nothing, and runs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_engine, gpu_matrices, gpu_transformers, results
from benchmarks.device import Device
from benchmarks.gpu_engine import Build, EngineMarks, Engines
from benchmarks.gpu_kernels import KernelMarks
from benchmarks.gpu_matrices import MatrixMarks
from benchmarks.gpu_transformers import Measured
from benchmarks.sections import DEVICE_FAILED, MOST_PROCESSES, Sections, in_processes
from benchmarks.shapes import TINY, Matrix
from engine.config import EngineConfig
from engine.engine import Engine
from engine.execution.runner import ModelRunner
from kernels import early, few_rows, tile_table
from kernels.few_rows import DenseLinear, Tile
from tests import conftest

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
BUILD = Build(TINY, slots=4, budget=64, page_size=16)

# Sections, three of which end the process, and what is kept of them.
DEADLY = """
import ctypes, json, os, signal, sys
from pathlib import Path
from benchmarks.sections import DEVICE_FAILED, Sections

working = True
record, kept = (Path(sys.argv[sys.argv.index(option) + 1]) for option in ("--record", "--kept"))

def keep(sections):
    kept.write_text(json.dumps({name: getattr(sections, name) for name in ("rows", "failed", "left_out", "given_up")}))

def fault():
    global working
    sections.use("kernel")
    working = False

def more():
    sections.use("other kernel")
    sections.use("kernel")

def killed():
    sections.use("killer")
    sections.add("lost")
    os.kill(os.getpid(), signal.SIGKILL)

sections = Sections(keep, 60.0, works=lambda: working, record=record, most_seconds=1.0)
sections.add("process")
sections.run("a", lambda: sections.add("of a"))
sections.run("b", killed)
sections.run("c", fault)
sections.run("more of c", more)
sections.run("d", lambda: sections.add("of d"))
sections.run("e", lambda: ctypes.PyDLL(None).sleep(60))  # with the interpreter's lock
sections.run("f", lambda: sections.add("of f"))
sys.exit(DEVICE_FAILED if sections.ended_by else 1)
"""


class Manager:
    """Stands for transformers', and ends when it has given its answers."""

    def __init__(self, lengths: list[int]) -> None:
        self._answers = [SimpleNamespace(generated_tokens=length * [0]) for length in lengths]
        self.asked: list[Any] = []
        self.running = False
        self.continuous_batching_config = SimpleNamespace(use_cuda_graph=(False, True), use_async_batching=True)
        self.batch_processor = SimpleNamespace(cache=SimpleNamespace(max_batch_tokens=512))
        self.model = SimpleNamespace(
            config=SimpleNamespace(_attn_implementation="paged|sdpa"),
            continuous_batching_context_manager=self._started,
        )

    @contextmanager
    def _started(self, **options: Any) -> Iterator[Manager]:
        self.options, self.running = options, True
        yield self
        self.running = False

    def add_requests(self, inputs: list[list[int]], max_new_tokens: int) -> None:
        self.asked.append((inputs, max_new_tokens))

    def get_result(self, timeout: float) -> SimpleNamespace | None:
        return self._answers.pop(0) if self._answers else None

    def is_running(self) -> bool:
        return bool(self._answers)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(CPU)


def endless(works: Callable[[], bool] = lambda: True) -> Sections:
    """Sections that have time."""
    return Sections(lambda so_far: None, 600.0, works=works)


def broken() -> None:
    raise ZeroDivisionError("nothing to divide by")


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_section_that_fails_costs_no_others_rows(capsys: pytest.CaptureFixture[str]):
    """It is told with what it raised, and what was measured is kept after each."""
    kept = []
    sections = Sections(lambda so_far: kept.append((len(so_far.rows), dict(so_far.failed))), 60.0)
    sections.run("first", lambda: sections.add("speed", us=1.0))
    sections.run("second", broken)
    sections.run("third", lambda: sections.add("speed", us=results.spread([2.0, 3.0, 5.0])))
    failed = {"second": "ZeroDivisionError: nothing to divide by"}
    assert kept == [(1, {}), (1, failed), (2, failed)]
    printed = capsys.readouterr().out
    assert "second: failed" in printed and "in broken" in printed and "us 3 (2 to 5)" in printed


def test_no_section_begins_after_its_time():
    """What is left out has its name and the reason told."""
    now = 0.0

    def slow() -> None:
        nonlocal now
        now += 40.0

    sections = Sections(lambda so_far: None, 60.0, clock=lambda: now)
    for name in ("first", "second", "third"):
        sections.run(name, slow)
    assert now == 80.0 and sections.left_out == {"third": "the time is up"} and not sections.failed


def test_no_section_begins_on_a_device_that_has_failed():
    """The others are left out for that, and what was measured before is kept."""
    working, kept = True, []

    def fault() -> None:
        nonlocal working
        working = False
        broken()

    sections = Sections(lambda so_far: kept.append(list(so_far.rows)), 60.0, works=lambda: working)
    sections.run("first", lambda: sections.add("speed", us=1.0))
    sections.run("second", broken)
    sections.run("third", fault)
    sections.run("fourth", lambda: sections.add("speed", us=2.0))
    assert sections.left_out == {"fourth": "the device computes nothing after third"}
    assert list(sections.failed) == ["second", "third"]
    assert kept == 4 * [[{"what": "speed", "us": 1.0}]]


def test_a_fault_that_the_host_does_not_notice_is_its_section_s():
    """And not that of the next one, which would be told of it."""
    working = iter((True, False))
    sections = Sections(lambda so_far: None, 60.0, works=lambda: next(working))
    for name in ("first", "second", "third"):
        sections.run(name, lambda: None)
    assert sections.failed == {"second": "the device failed in it"} and list(sections.left_out) == ["third"]


def test_another_process_goes_on_behind_a_section_that_ends_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whether it is killed, its device fails or it hangs; nothing is run twice, what was measured before is kept, and
    what was in use by then is not used again."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script, kept = tmp_path / "deadly.py", tmp_path / "kept.json"
    script.write_text(DEADLY)
    assert in_processes([sys.executable, str(script), "--kept", str(kept)], 60.0) == 1
    found = json.loads(kept.read_text())
    told = [row["what"] for row in found["rows"]]
    assert told == ["process", "of a", "process", "process", "of d", "process", "of f"]
    ended = "the process ended in it"
    assert found["failed"] == {"b": ended, "c": "the device failed in it", "e": ended}
    assert found["left_out"] == {"more of c": "kernel is given up: the device failed in c"}
    assert found["given_up"] == {"killer": "the process ended in b", "kernel": "the device failed in c"}


def test_what_the_last_section_did_to_its_process_is_kept(tmp_path: Path):
    """No other one would have it written."""
    record, kept = tmp_path / "record.json", []
    with pytest.raises(KeyboardInterrupt):
        Sections(lambda so_far: None, 60.0, record=record).run("last", interrupted)
    sections = Sections(lambda so_far: kept.append(dict(so_far.failed)), 60.0, record=record)
    sections.run("last", interrupted)
    assert kept == [{"last": "the process ended in it"}]


def test_processes_that_get_nowhere_are_given_up(tmp_path: Path):
    """And have no more time together than one would have had."""
    said = tmp_path / "said"
    assert in_processes(["sh", "-c", f'echo "$2" >> {said}; kill -9 $$', "sh"], 60.0) == -9
    left = [float(line) for line in said.read_text().splitlines()]
    assert len(left) == MOST_PROCESSES and 60.0 >= left[0] > left[-1] > 0.0


def test_a_gpu_is_measured_in_a_process_that_may_die(monkeypatch: pytest.MonkeyPatch):
    """With the options given, and on a machine without one it is said that there is none."""
    started = []
    monkeypatch.setattr(gpu, "in_processes", lambda command, seconds: started.append((command, seconds)) or 7)
    monkeypatch.setattr("sys.argv", ["gpu", "--seconds", "9", "--only", "mixed"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.main() == 7
    command = [sys.executable, "-m", "benchmarks.gpu", "--seconds", "9", "--only", "mixed"]
    assert started == [(command, 9.0)]


def test_a_process_says_that_its_device_has_failed(monkeypatch: pytest.MonkeyPatch):
    """By its status, which no failure of a section has."""
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--only", "elementwise"])
    assert gpu.main() == 0
    monkeypatch.setattr(Device, "works", lambda device: False)
    assert gpu.main() == DEVICE_FAILED


def test_without_a_gpu_the_benchmark_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """In one line."""
    monkeypatch.setattr("sys.argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert "sees no CUDA device" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("fault", [None, RuntimeError("an illegal memory access was encountered")])
def test_a_device_that_cannot_finish_its_work_has_failed(device: Device, monkeypatch: pytest.MonkeyPatch, fault):
    """As torch says when it waits for it."""

    def synchronize(which: torch.device) -> None:
        if fault:
            raise fault

    monkeypatch.setattr(device, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert device.works() is (fault is None)


def test_an_engine_that_gets_nowhere_is_given_up(device: Device, monkeypatch: pytest.MonkeyPatch):
    """With the numbers that say where it stands; the next section gets another engine."""
    monkeypatch.setattr(gpu_engine, "MOST_STEPS", 50)
    engines = Engines(device, endless())
    engine = engines.get(BUILD)
    engine.submit(gpu_engine.make_request("a", TINY.vocab, 20, 1000, 0))
    with pytest.raises(RuntimeError, match=r"50 steps .* \(0, 1, 0\) run.*last step had 1 rows"):
        gpu_engine.drain(engine)
    assert engines.get(BUILD) is not engine


def test_an_engine_is_kept_until_another_one_is_wanted(device: Device):
    """And then nothing of it is."""
    engines = Engines(device, endless())
    engine = engines.get(BUILD)
    assert engines.get(Build(TINY, slots=4, budget=64, page_size=16)) is engine
    gone = weakref.ref(engine)
    del engine
    other = engines.get(Build(TINY, slots=4, budget=None, page_size=16))
    assert gone() is None and other.config.max_num_batched_tokens is None


def test_an_engine_s_objects_are_not_walked_through_between_two_steps(device: Device):
    """As they are not in the engine's process, and as long as it is there."""
    engines, before = Engines(device, endless()), gc.get_freeze_count()
    engines.get(BUILD)
    assert gc.get_freeze_count() > before
    engines.drop()
    assert gc.get_freeze_count() == 0


def test_attention_is_measured_as_a_recorded_step_has_it(device: Device, monkeypatch: pytest.MonkeyPatch):
    """All layers in one recording, each over keys and values of its own."""
    read = []

    def times(*calls: Callable[[], object], share: bool = False) -> list[float]:
        assert share
        for call in calls:
            call()
        return [1.0]

    def attention(q: torch.Tensor, k: torch.Tensor, *more: object) -> torch.Tensor:
        read.append(k.data_ptr())
        return q

    monkeypatch.setattr(device, "times", times)
    monkeypatch.setattr(device.kernels, "decode_attention", attention)
    KernelMarks(device, lambda what, **row: None).decode_attention(TINY, 3, 70, 16)
    assert len(set(read)) == len(read) == TINY.layers


def test_an_engine_records_no_early_launch_where_none_is_wanted(device: Device, monkeypatch: pytest.MonkeyPatch):
    """And afterwards kernels begin early again, where they can."""
    monkeypatch.setattr(early, "can_start_early", lambda device: True)
    launches, build_engine = [], gpu_engine.build_engine

    def built(config: EngineConfig) -> Engine:
        launches.append(early.early(CPU))
        return build_engine(config)

    monkeypatch.setattr(gpu_engine, "build_engine", built)
    engines, said = Engines(device, endless()), []
    for wanted in (False, True):
        engines.get(replace(BUILD, early_launch=wanted))
        said.append(engines.early_launch)
    assert launches == [{"EARLY": False}, {"EARLY": True, "launch_pdl": True}] and said == [False, True]
    monkeypatch.setattr(early, "can_start_early", lambda device: False)
    engines.drop()
    engines.get(BUILD)
    assert not engines.early_launch  # of a device that cannot


def test_rows_of_an_engine_say_whether_its_kernels_begin_early(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Those of a profile, whose times would overlap, and those of steps, which show what it gives."""
    monkeypatch.setattr(early, "can_start_early", lambda device: True)
    sections = endless()
    marks = gpu.Marks(device, sections)
    marks.engine(BUILD, marks.of_engines.decode_step, 3, 20, 4)
    marks.engine(replace(BUILD, early_launch=False), marks.of_engines.kernels_of_a_step, 3, 20)
    marks.run()
    assert not sections.failed
    assert [(row["what"], row["early_launch"]) for row in sections.rows if row["what"] != "kernel"] == [
        ("engine", True), ("decode step", True), ("engine", False), ("profile", False),
    ]  # fmt: skip


def test_rows_that_end_while_they_are_measured_are_no_figure(device: Device, monkeypatch: pytest.MonkeyPatch):
    """A step of fewer rows than it says is refused."""
    monkeypatch.setattr(gpu_engine, "SPARE_TOKENS", -5)
    marks = EngineMarks(device, lambda what, **row: None)
    with pytest.raises(RuntimeError, match="of 3 rows 0 were left"):
        marks.decode_step(Engines(device, endless()).get(BUILD), TINY, 3, 20, 4, runs=2)


def test_what_was_measured_before_does_not_count(device: Device):
    """A batch as large as the last one decodes when its own prompts are computed, and not at once."""
    engine, found = Engines(device, endless()).get(BUILD), []
    marks = EngineMarks(device, lambda what, **row: found.append(row["context"]))
    for _ in range(2):
        marks.decode_step(engine, TINY, 3, 200, 2, runs=1)
    assert found[0] == found[1]


def test_a_recorded_step_is_replayed_with_nobody_in_it(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Whoever comes afterwards is computed all the same."""
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
    assert not engine.has_work and engine.scheduler.memory.pool.held == 0


def test_the_bound_of_a_decode_step_is_of_what_rows_hold_by_then(device: Device):
    """And not of what they began with."""
    found = []
    marks = EngineMarks(device, lambda what, **row: found.append(row))
    marks.decode_step(Engines(device, endless()).get(BUILD), TINY, 3, 20, 10, runs=2)
    (row,) = found
    assert 30 < row["context"] < 40
    bound = TINY.decode_bytes(3, 3 * row["context"]) / device.ceilings.bytes_per_second
    assert row["bound_ms"] == pytest.approx(1000 * bound)


def test_a_person_is_told_the_largest_gap(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Of all who asked in that state."""
    answers = iter([(0.5, [0.1])] + [(0.1, [0.01, 0.02]), (0.2, [0.03, 0.01])] * 2)
    monkeypatch.setattr(gpu_engine, "_ask", lambda *_: next(answers))
    found = []
    marks = EngineMarks(device, lambda what, **row: found.append(row))
    marks.people(Engines(device, endless()).get(BUILD), TINY, 20, 3, asks=2, bulk=(20, 100))
    for state in ("idle", "loaded"):
        assert found[0][f"{state}_largest_gap_ms"] == pytest.approx(30.0)
        assert found[0][f"{state}_ttft_ms"]["max"] == pytest.approx(200.0)


def test_fewer_tokens_than_were_asked_for_are_no_rate(monkeypatch: pytest.MonkeyPatch):
    """transformers returns what it has when it failed."""
    manager = Manager([2])
    monkeypatch.setattr(gpu_transformers, "_model", lambda shape, device: manager.model)
    with pytest.raises(RuntimeError, match="2 tokens of 6"):
        list(gpu_transformers._tell(TINY, CPU, [[1], [2]], output=3, runs=1))


def test_transformers_is_timed_while_it_generates(monkeypatch: pytest.MonkeyPatch):
    """Neither as it starts nor as it stops, with no answer left over from a run before; and what it chose to compute by
    is told."""
    manager = Manager(3 * [3, 3])
    monkeypatch.setattr(gpu_transformers, "_model", lambda shape, device: manager.model)
    told = []
    for line in gpu_transformers._tell(TINY, CPU, [[1], [2]], output=3, runs=2):
        assert manager.running
        told.append(line)
    assert not manager.running and not manager.options["continuous_batching_config"].allow_block_sharing
    measured = gpu_transformers._read("\n".join([*told, ""]).encode())
    assert measured.ways == {
        "attention": "paged|sdpa", "cuda_graphs": [False, True], "async_batching": True, "tokens_of_a_step": 512,
    }  # fmt: skip
    assert len(measured.rates) == 2 and manager.asked == 3 * [([[1], [2]], 3)]


def test_results_are_kept_where_they_are_wanted_too(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rows, and what failed and was left out."""
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    card = SimpleNamespace(name="a card", multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(results, "FOLDER", here)
    sections = Sections(partial(gpu.keep, device, there, ""), 60.0)
    sections.run("first", lambda: sections.add("speed", us=1.0))
    sections.run("second", broken)
    kept = [json.loads((folder / "gpu.json").read_text()) for folder in (here, there)]
    assert kept[0] == kept[1]
    assert kept[0]["rows"] == sections.rows and list(kept[0]["summary"]["failed"]) == ["second"]


def test_a_selection_replaces_no_whole_run_s_results(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has a file of its own, which says what was selected."""
    card = SimpleNamespace(name="a card", multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    for only in ("", "peo.le"):
        Sections(partial(gpu.keep, device, None, only), 60.0).run("people", lambda: None)
    settings = {path.name: json.loads(path.read_text())["settings"] for path in tmp_path.iterdir()}
    assert settings.keys() == {"gpu.json", "gpu_only.json"}
    assert "only" not in settings["gpu.json"] and settings["gpu_only.json"]["only"] == "peo.le"


def test_results_say_where_they_come_from_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine without it has no commit to tell, unless it is told."""
    monkeypatch.delenv("CAROUSEL_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.origin()["commit"] == "unknown"
    monkeypatch.setenv("CAROUSEL_COMMIT", "0123456789ab")
    assert results.origin()["commit"] == "0123456789ab"


def test_the_benchmark_runs_whatever_the_tests_said(tmp_path: Path):
    """`make gpu` fails in the end when either did, and the results and what tests said go where they are wanted too."""
    python, said, out = tmp_path / "python", tmp_path / "said", tmp_path / "out"
    python.write_text(f'#!/bin/sh\necho "$@" >> {said}\ncase "$2" in pytest) echo 1 failed; exit 1;; esac\n')
    python.chmod(0o755)
    command = ["make", "gpu", f"GPU_PYTHON={python}", f"OUT={out}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0, ended.stderr
    lines = [line for line in said.read_text().splitlines() if not line.startswith("-m pip")]  # of wheels, if any
    assert {line.split()[1] for line in lines[:2]} == {"import", "kernels.cpu"}  # what every worker would wait for
    (tests,) = (line for line in lines if line.startswith("-m pytest"))
    assert "tests/engine/test_on_device.py" in tests and "-o timeout_method=thread" in tests
    assert lines[-1] == f"-m benchmarks.gpu --also-in {out}"
    assert (out / "tests.log").read_text() == "1 failed\n" and "1 failed" in ended.stdout


@pytest.mark.parametrize(
    ("said", "worker", "real", "ends"),
    [
        ("CUDA error: an illegal memory access was encountered", True, True, True),
        ("Triton Error [CUDA]: misaligned address", True, True, True),
        ("AssertionError: 1 == 2", True, True, False),
        ("CUDA error: an illegal memory access was encountered", False, True, False),  # all tests are in this process
        ("CUDA error: an illegal memory access was encountered", True, False, False),  # somebody pretends
    ],
)
def test_a_test_that_loses_its_device_takes_no_others_with_it(
    monkeypatch: pytest.MonkeyPatch, said, worker, real, ends
):
    """Of several processes that share the tests the one that had it ends."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: real)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    else:
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    conftest.pytest_runtest_logreport(pytest.TestReport("a", ("a", 1, "a"), {}, "failed", said, "call"))
    assert bool(ended) is ends


def test_what_make_gpu_runs_is_there():
    """A test file that was renamed would be no test."""
    listed = subprocess.run(["make", "-n", "gpu"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    files = [word for word in listed.stdout.split() if word.startswith("tests/")]
    assert len(files) > 5 and all((ROOT / file).exists() for file in files)


def test_every_kind_of_row_can_be_measured(device: Device, monkeypatch: pytest.MonkeyPatch):
    """On tiny shapes and a CPU, where figures say nothing; transformers is left out, which takes a minute there."""
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
    (theirs,) = (row for row in sections.rows if row["what"] == "transformers")
    assert theirs["times_that"] > 0 and ways.items() <= theirs.items()
    built = {"early_launch", "recorded"}
    of_engines = {row["what"] for row in sections.rows if built <= row.keys()}
    assert {"decode step", "prefill", "mixed", "people", "swapping", "beside transformers"} < of_engines


def test_sections_are_run_by_their_names(device: Device):
    """Those in which an expression is found; one that is found in none is refused with all names."""
    sections = endless()
    marks = gpu.Marks(device, sections)
    gpu.on_cpu(marks)
    with pytest.raises(LookupError, match=r"'nonsense' is found in none of these names:(?s:.*)\nelementwise tiny 3\n"):
        marks.select("nonsense")
    marks.select("^(elementwise|lone_prompt).*tiny")
    marks.run()
    assert {row["what"] for row in sections.rows} == {"rms_norm", "silu_mul", "lone prompt"}


def test_a_selection_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As what is no expression is."""
    for only, why in (("nonsense", "found in none of these names:\ndecode_attention"), ("(", "unterminated")):
        monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--only", only])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert ended.value.code == 2 and why in capsys.readouterr().err


@pytest.mark.parametrize("runs", [0, 2])
def test_what_transformers_did_before_its_time_was_up_is_not_lost(monkeypatch: pytest.MonkeyPatch, runs: int):
    """Rates that it had told count, among whatever else it says; without one it is said that it took too long."""
    told = f'loading: 100%\n{gpu_transformers.WAYS}{{"attention": "eager"}}\n'
    told += "".join(f"\n{gpu_transformers.RATE}{10.5 * run}\n" for run in range(1, runs + 1))
    told += f"{gpu_transformers.RATE}99"  # and is about to say more
    body = f"import sys, time; sys.stdout.write({told!r}); sys.stdout.flush(); time.sleep(60)"
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: run([sys.executable, "-c", body], **more))

    def measured() -> Measured:
        return gpu_transformers.measure(TINY, CPU, [(1,)], 3, 2, timeout=2.0)

    if runs:
        assert measured() == Measured({"attention": "eager"}, [10.5, 21.0])
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            measured()


def test_every_section_on_a_gpu_has_a_name_of_its_own(device: Device):
    """Or a selection would be of both, and what failed in one would be told of the other; engines are told apart."""
    marks = gpu.Marks(device, endless())
    gpu.on_gpu(marks)
    for build in ("Llama-3.2-1B", "Llama-3.2-1B batch_invariant=True"):
        assert any(name.startswith(f"decode_step {build} 32 512") for name in marks.planned)
    with pytest.raises(ValueError, match="two sections"):
        gpu.on_gpu(marks)


def test_what_is_needed_first_is_measured_first(device: Device, monkeypatch: pytest.MonkeyPatch):
    """What the project is measured by before what explains it, for which every engine is built once; and the profiler,
    which stays in the process, behind all."""
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
    wanted = [
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
    places = [next(at for at, name in enumerate(names) if f"{name} ".startswith(f"{one} ")) for one in wanted]
    assert places == sorted(places)
    profiled = [at for at, name in enumerate(names) if name.startswith("kernels_of_a_step ")]
    assert profiled == list(range(len(names) - len(profiled), len(names)))
    assert len([build for build, _ in groupby(marked[0])]) == len(set(marked[0])) == 5


@pytest.mark.parametrize("broken_in", [("early_launch",), ("early_launch", "recorded")])
def test_an_engine_that_cannot_be_built_is_built_without_what_may_be_at_fault(
    device: Device, monkeypatch: pytest.MonkeyPatch, broken_in: tuple[str, ...]
):
    """Early launch first, then recordings; with all memory free again. Rows say so, and what failed is not tried
    again."""
    monkeypatch.setattr(early, "can_start_early", lambda device: True)
    tried: list[Build | str] = []
    monkeypatch.setattr(device, "release", lambda: tried.append("release"))
    made = Engines._made

    def made_or_not(engines: Engines, build: Build) -> Engine:
        tried.append(build)
        if any(getattr(build, what) for what in broken_in):
            raise ValueError("no such instruction")
        return made(engines, build)

    monkeypatch.setattr(Engines, "_made", made_or_not)
    sections = endless()
    marks = gpu.Marks(device, sections)
    marks.engine(BUILD, marks.of_engines.lone_prompt, 20, 2)
    marks.kernel(marks.of_kernels.elementwise, TINY, 3)  # the engine is gone
    marks.engine(BUILD, marks.of_engines.lone_prompt, 30, 2)
    marks.run()
    plain = replace(BUILD, early_launch=False)
    attempts = [BUILD, plain, replace(plain, recorded=False)][: len(broken_in) + 1]
    expected = [step for attempt in (*attempts, attempts[-1]) for step in (attempt, "release")]
    assert tried == expected[:-1] and not sections.failed and not sections.left_out
    assert [row["early_launch"] for row in sections.rows if row["what"] == "lone prompt"] == [False, False]
    why = "ValueError: no such instruction"
    assert sections.given_up == {f"engine {attempt}": why for attempt in attempts[:-1]}


def test_an_engine_that_cannot_be_built_at_all_costs_no_time_again(device: Device, monkeypatch: pytest.MonkeyPatch):
    """Its sections are left out with the reason."""
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
    assert all("recorded=False is given up: ValueError: no memory" in why for why in sections.left_out.values())


def test_a_device_that_is_lost_builds_nothing_else(device: Device, monkeypatch: pytest.MonkeyPatch):
    """What would be tried next is not at fault."""
    monkeypatch.setattr(early, "can_start_early", lambda device: True)
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


def test_what_loses_the_device_is_not_used_again(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """In the processes that go on behind: a kernel's measurement is not tried at other sizes, and no other engine has
    early launch, as long as that may be at fault."""
    monkeypatch.setattr(early, "can_start_early", lambda device: True)
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


def test_what_batch_invariance_costs_is_told_where_both_were_measured(device: Device):
    """At the same sizes."""
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


def test_batch_invariance_is_measured_where_the_usual_is(device: Device):
    """Or there would be nothing to compare with."""
    marks = gpu.Marks(device, endless())
    gpu.on_gpu(marks)
    found = [name for name in marks.planned if "batch_invariant=True" in name and not name.startswith("engine")]
    assert len(found) >= 5
    assert all(name.replace(" batch_invariant=True", "") in marks.planned for name in found)


def test_a_tile_that_fails_costs_its_own_row_and_the_fastest_one_is_chosen(
    device: Device, monkeypatch: pytest.MonkeyPatch
):
    """And the table is afterwards what it was."""
    impossible, slow, fast = Tile(3, 256, 4, 3), Tile(16, 64, 1, 3), Tile(32, 64, 1, 3)
    monkeypatch.setattr(gpu_matrices, "candidates", lambda gated: iter((slow, impossible, fast)))
    seconds = iter((0.3, 0.1))

    def times(*calls: Callable[[], object], share: bool) -> list[float]:
        calls[0]()
        return [next(seconds)]

    monkeypatch.setattr(device, "times", times)
    rows: list[str] = []
    marks, before = MatrixMarks(device, lambda what, **row: rows.append(what)), dict(few_rows.TILES)
    assert marks.tiles(Matrix("down", 40, 64)) == fast
    assert rows == ["tile", "tile that fails", "tile"]
    assert before == few_rows.TILES


@pytest.mark.parametrize("wrong_by", [1000.0, float("nan")])
def test_a_tile_that_computes_something_else_is_not_chosen(
    device: Device, monkeypatch: pytest.MonkeyPatch, wrong_by: float
):
    """However fast it is."""
    right, wrong = Tile(16, 64, 1, 3), Tile(32, 64, 1, 3)
    multiply = DenseLinear.multiply_few

    def multiplied(layer: DenseLinear, *given: Any) -> torch.Tensor:
        y = multiply(layer, *given)
        if few_rows.TILES[40, 64, False] == wrong:
            y[-1, -1] += wrong_by
        return y

    monkeypatch.setattr(gpu_matrices, "candidates", lambda gated: iter((wrong, right)))
    monkeypatch.setattr(DenseLinear, "multiply_few", multiplied)
    monkeypatch.setattr(device, "times", lambda *calls, share: [0.1 if few_rows.TILES[40, 64, False] == wrong else 0.3])
    rows: list[str] = []
    assert MatrixMarks(device, lambda what, **row: rows.append(what)).tiles(Matrix("qkv", 40, 64)) == right
    assert rows == ["tile that differs", "tile"]


@pytest.mark.parametrize("matrix", TINY.matrices, ids=lambda matrix: matrix.name)
def test_one_kernel_computes_what_the_library_does(device: Device, matrix: Matrix):
    """Whatever stands around the product; and again, when rows and residual are others."""
    layer = gpu_matrices.Layer(matrix, 3, CPU)
    assert max(layer.error() for _ in range(2)) < 1e-4


def test_the_best_tiles_become_the_table_that_kernels_read(monkeypatch: pytest.MonkeyPatch):
    """As it would be written by hand, with the device that was measured, and what was known of others."""
    monkeypatch.setattr(tile_table, "FOUND", {(40, 64, False): (16, 64, 1, 3), (8, 8, True): (16, 256, 4, 3)})
    best = {(40, 64, False): Tile(32, 64, 1, 3), (128256, 2048, False): Tile(32, 256, 4, 8)}
    module = gpu_matrices.as_module("NVIDIA H100 80GB HBM3", best)
    read: dict[str, Any] = {}
    exec(module, read)
    assert "NVIDIA H100 80GB HBM3" in read["__doc__"]
    assert {matrix: Tile(*tile) for matrix, tile in read["FOUND"].items()} == best | {(8, 8, True): Tile(16, 256, 4, 3)}
    command = [sys.executable, "-m", "ruff", "format", "--check", "--stdin-filename", "tile_table.py", "-"]
    assert subprocess.run(command, input=module, text=True, check=False).returncode == 0


@pytest.mark.parametrize("gated", [False, True])
def test_tiles_that_are_tried_fit_on_a_multiprocessor(gated: bool):
    """Those of a gate hold twice as much."""
    tiles = list(gpu_matrices.candidates(gated))
    assert 10 < len(tiles) <= 40 and len(set(tiles)) == len(tiles)
    assert Tile(64, 256, 4, 8) not in tiles
    assert (Tile(32, 256, 4, 8) in tiles) is not gated
