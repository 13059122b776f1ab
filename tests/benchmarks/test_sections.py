"""A long run in sections loses nothing and hangs in nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.sections import MOST_PROCESSES, Sections, in_processes

ROOT = Path(__file__).resolve().parents[2]

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
    assert now == 80.0 and sections.left_out == {"third": "the time limit is reached"} and not sections.failed


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
    assert sections.left_out == {"fourth": "the device has failed in third"}
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
    assert found["left_out"] == {"more of c": "kernel is no longer used: the device failed in c"}
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
