"""A long run in sections keeps its results and does not hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.sections import MAX_PROCESSES, Sections, in_processes

ROOT = Path(__file__).resolve().parents[2]

# Sections, three of which end the process, and their saved results.
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
    sections.use_feature("kernel")
    working = False

def more():
    sections.use_feature("other kernel")
    sections.use_feature("kernel")

def killed():
    sections.use_feature("killer")
    sections.add("lost")
    os.kill(os.getpid(), signal.SIGKILL)

sections = Sections(keep, 60.0, works=lambda: working, record=record, max_seconds=1.0)
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


def broken() -> None:
    raise ZeroDivisionError("nothing to divide by")


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_section_that_fails_does_not_affect_rows_of_others(capsys: pytest.CaptureFixture[str]):
    """It is reported with its exception, and results are saved after each section."""
    kept = []
    sections = Sections(lambda so_far: kept.append((len(so_far.rows), dict(so_far.failed))), 60.0)
    sections.run("first", lambda: sections.add("speed", us=1.0))
    sections.run("second", broken)
    sections.run("third", lambda: sections.add("speed", us=results.spread([2.0, 3.0, 5.0])))
    failed = {"second": "ZeroDivisionError: nothing to divide by"}
    assert kept == [(1, {}), (1, failed), (2, failed)]
    printed = capsys.readouterr().out
    assert "second: failed" in printed and "in broken" in printed and "us 3 (2 to 5)" in printed


def test_no_section_starts_after_the_time_limit():
    """A skipped section is reported with its name and the reason."""
    now = 0.0

    def slow() -> None:
        nonlocal now
        now += 40.0

    sections = Sections(lambda so_far: None, 60.0, clock=lambda: now)
    for name in ("first", "second", "third"):
        sections.run(name, slow)
    assert now == 80.0 and sections.left_out == {"third": "the time limit is reached"} and not sections.failed


def test_no_section_starts_on_a_failed_device():
    """The others are skipped for that reason, and earlier results are kept."""
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
    assert sections.left_out == {"fourth": "the device has failed in third"}
    assert list(sections.failed) == ["second", "third"]
    assert kept == 4 * [[{"what": "speed", "us": 1.0}]]


def test_an_asynchronous_fault_is_attributed_to_its_section():
    """It is not attributed to the next section, in which the error would appear."""
    working = iter((True, False))
    sections = Sections(lambda so_far: None, 60.0, works=lambda: next(working))
    for name in ("first", "second", "third"):
        sections.run(name, lambda: None)
    assert sections.failed == {"second": "the device failed in it"} and list(sections.left_out) == ["third"]


def test_another_process_continues_after_a_section_that_ends_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A section may be killed, lose the device or hang. Nothing runs twice, earlier results are kept, and features in
    use at that time are not used again."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script, kept = tmp_path / "deadly.py", tmp_path / "kept.json"
    script.write_text(DEADLY)
    assert in_processes([sys.executable, str(script), "--kept", str(kept)], 60.0) == 1
    found = json.loads(kept.read_text())
    reported = [row["what"] for row in found["rows"]]
    assert reported == ["process", "of a", "process", "process", "of d", "process", "of f"]
    ended = "the process ended in it"
    assert found["failed"] == {"b": ended, "c": "the device failed in it", "e": ended}
    assert found["left_out"] == {"more of c": "kernel is no longer used: the device failed in c"}
    assert found["given_up"] == {"killer": "the process ended in b", "kernel": "the device failed in c"}


def test_the_failure_of_the_last_section_is_kept(tmp_path: Path):
    """No other section would write it."""
    record, kept = tmp_path / "record.json", []
    with pytest.raises(KeyboardInterrupt):
        Sections(lambda so_far: None, 60.0, record=record).run("last", interrupted)
    sections = Sections(lambda so_far: kept.append(dict(so_far.failed)), 60.0, record=record)
    sections.run("last", interrupted)
    assert kept == [{"last": "the process ended in it"}]


def test_processes_without_progress_are_abandoned(tmp_path: Path):
    """Together they get no more time than one process would."""
    output = tmp_path / "output"
    assert in_processes(["sh", "-c", f'echo "$2" >> {output}; kill -9 $$', "sh"], 60.0) == -9
    left = [float(line) for line in output.read_text().splitlines()]
    assert len(left) == MAX_PROCESSES and 60.0 >= left[0] > left[-1] > 0.0
