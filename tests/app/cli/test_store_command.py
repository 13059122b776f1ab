"""`carousel store`: what a server keeps is shown, pruned and exported, beside the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from app.__main__ import main, make_parser
from app.store import writer as writer_module
from app.store.database import APPLICATION_ID, SCHEMA_VERSION, connect
from app.store.entries import Entry, Note, Origin
from app.store.parts import PARTS
from app.store.pruning import BATCH_RECORDS, DAY_SECONDS, AgeLimit, remove_batch
from app.store.state_file import StateFile
from engine.types import Request, SamplingParams, ServiceClass
from tests.conftest import ROOT
from tests.limits import HANG_SECONDS

NOW = time.time()
BODY = {"messages": [{"role": "user", "content": "Grüße an alle."}]}


def add(
    connection: sqlite3.Connection, name: str, days: float, *, has_ended: bool = True, owner: str = "a" * 64
) -> None:
    """Add an answer that began, and perhaps ended, some days ago."""
    request = Request(id=name, prompt=(1, 2), sampling=SamplingParams(max_tokens=9, seed=3))
    origin = Origin("ChatRequest", json.dumps(BODY).encode(), 60.0)
    began = NOW - days * DAY_SECONDS
    entry = Entry(request, Note(origin, owner, "", "", began, None, "f", "v", "e", ServiceClass.STANDARD))
    connection.execute(
        "INSERT INTO request (id, owner, created, ended, entry) VALUES (?, ?, ?, ?, ?)",
        (name, owner, began, began + 1 if has_ended else None, msgspec.msgpack.encode(entry)),
    )
    connection.execute("INSERT INTO tokens VALUES (?, 0, x'0100000002000000', x'', NULL)", (name,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with two answers that ended, one of them long ago, and two that did not."""
    path = tmp_path / "s.db"
    with contextlib.closing(connect(path)) as connection, connection:
        add(connection, "new", 1)
        add(connection, "old", 40, owner="b" * 64)
        add(connection, "running", 0.001, has_ended=False)
        add(connection, "lost", 50, has_ended=False)
    return path


def ids(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = {row[0] for row in connection.execute("SELECT id FROM request")}
        assert found == {row[0] for row in connection.execute("SELECT id FROM tokens")}
    return found


def test_the_content_is_shown_by_kind_and_owner(path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["store", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: ") and lines[0].endswith(f", version {SCHEMA_VERSION}")
    kinds = {line[:18].strip(): line[18:].split() for line in lines[2 : 3 + len(PARTS)]}
    assert kinds["kind"] == ["records", "bytes", "oldest", "newest", "unfinished"]
    assert kinds["answers"][0] == "4" and kinds["answers"][-1] == "2"
    assert kinds["usage rows"] == ["0", "0", "-", "-", "0"]
    assert lines[-2].split()[:3] == ["a" * 12, "answers", "3"] and lines[-1].split()[0] == "b" * 12


def test_old_records_are_removed(path: Path, capsys: pytest.CaptureFixture[str]):
    """Of those that have ended; --all removes the others too."""
    assert main(["store", "prune", str(path), "--days", "30"]) == 0
    assert "1 answers removed" in capsys.readouterr().out.splitlines()
    assert ids(path) == {"new", "running", "lost"}
    assert main(["store", "prune", str(path), "--all"]) == 0
    assert ids(path) == set()


def test_removed_texts_are_not_left_in_the_files(path: Path):
    assert any(b"Gr" in each.read_bytes() and b"content" in each.read_bytes() for each in path.parent.iterdir())
    assert main(["store", "prune", str(path), "--all"]) == 0
    assert not any(b"content" in each.read_bytes() for each in path.parent.iterdir())


def test_records_are_exported_as_lines_of_json(path: Path, capsysbinary: pytest.CaptureFixture[bytes]):
    """In order of their beginning, with the body of each request and the number of its tokens."""
    assert main(["store", "export", str(path)]) == 0
    records = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [record["id"] for record in records] == ["lost", "old", "new", "running"]
    assert records[1]["request"] == BODY and records[1]["tokens"] == 2 and records[1]["owner"] == "b" * 64
    assert records[0]["ended"] is None and records[1]["ended"] == pytest.approx(records[1]["created"] + 1)


def test_a_wrong_row_is_exported_as_such(path: Path, capsysbinary: pytest.CaptureFixture[bytes]):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE request SET entry = x'00' WHERE id = 'old'")
    assert main(["store", "export", str(path)]) == 0
    assert b'"error": "the row cannot be read"' in capsysbinary.readouterr().out


async def test_the_command_works_beside_a_server(path: Path):
    """In another process; the server goes on to write."""
    file = StateFile(path)
    file.start()
    row = ("r1", NOW, "anna")
    file.usage_rows.hold("r1", NOW, row)
    async with asyncio.timeout(HANG_SECONDS):
        while file.writer.pending:
            await asyncio.sleep(0.01)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "app", "store", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
        return done.stdout

    assert '"values": ["r1", ' in await asyncio.to_thread(run, "export", str(path))
    assert "1 usage rows removed" in await asyncio.to_thread(run, "prune", str(path), "--days", "0")
    file.usage_rows.hold("r2", NOW, row)
    await asyncio.to_thread(file.close)
    assert ids(path) == {"running", "lost"}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM usage_row").fetchall() == [("r2",)]


def test_a_locked_file_is_waited_for_and_then_named(path: Path, capsys: pytest.CaptureFixture[str]):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["store", "prune", str(path), "--all"]) == 1
    assert f"store: {path}: it stayed locked for 2 s by another process; run" in capsys.readouterr().err
    assert len(ids(path)) == 4


def create_other(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name)")


def create_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no such file"),
        (Path.touch, "it is empty"),
        (create_other, "it is a database of another application"),
        (create_version, f"it has version 99; this Carousel supports version {SCHEMA_VERSION}"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(4080)), "file is not a database"),
    ],
)
@pytest.mark.parametrize("action", [["show"], ["export"], ["prune", "--all"]])
def test_other_files_are_refused_and_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make, message: str, action: list[str]
):
    other = tmp_path / "other.db"
    make(other)
    before = other.read_bytes() if other.exists() else None
    assert main(["store", *action, str(other)]) == 1
    assert f"carousel: store: {other}: {message}" in capsys.readouterr().err
    assert (other.read_bytes() if other.exists() else None) == before


def test_the_default_is_the_store_of_the_default_port(path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("STATE_DIRECTORY", str(path.parent))
    path.rename(path.with_name("store-8000.db"))
    assert main(["store", "show"]) == 0
    assert "store-8000.db: " in capsys.readouterr().out
    assert main(["store", "show", "--port", "8001"]) == 1
    assert "store-8001.db: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["-1", "inf", "nan", "x"])
def test_a_wrong_number_of_days_is_refused(path: Path, days: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["store", "prune", str(path), f"--days={days}"])
    assert f"must be a number of days of at least 0, got '{days}'" in capsys.readouterr().err


def test_the_documented_examples_are_valid():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    examples = re.findall(r"^    carousel (store .*?)(?: +#| >|$)", text, re.M)
    assert len(examples) >= 5
    for example in examples:
        arguments = shlex.split(example)
        assert make_parser(arguments).parse_args(arguments).command == "store"


def test_every_part_is_described_completely(path: Path):
    """Each statement is one that SQLite accepts, and an empty store is an empty one in each part."""
    with contextlib.closing(connect(path)) as connection:
        while remove_batch(connection, float("inf"), float("inf")):
            pass
        for part in PARTS:
            assert connection.execute(part.usage).fetchall() == [] and list(part.export(connection)) == []


# Age limit ------------------------------------------------------------------------------------------------------------


def test_a_start_removes_what_is_too_old(path: Path):
    """Also answers that have not ended, whose server never came back."""
    file = StateFile(path, max_days=30)
    assert {saved.entry.request.id for saved in file.read().answers} == {"new", "running"}
    file.close()
    assert ids(path) == {"new", "running"}


async def test_the_writer_removes_what_has_become_too_old_in_small_batches(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each batch is a transaction, so that no answer waits for all of them."""
    with contextlib.closing(connect(path)) as connection, connection:
        for number in range(2 * BATCH_RECORDS):
            add(connection, f"old{number}", 31)
    calls: list[bool] = []

    def remove(self: AgeLimit, connection: sqlite3.Connection) -> bool:
        before = self.clock() - 30 * DAY_SECONDS
        calls.append(bool(removed := remove_batch(connection, before, before)))
        assert removed.get("answers", 0) <= BATCH_RECORDS
        return calls[-1]

    monkeypatch.setattr(AgeLimit, "remove_batch", remove)
    file = StateFile(path)
    file.start()
    async with asyncio.timeout(HANG_SECONDS):
        while calls[-1:] != [False]:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(file.close)
    assert calls == [True, True, True, False] and ids(path) == {"new", "running"}


async def test_an_error_while_old_records_are_removed_ends_nothing(path: Path, monkeypatch, caplog):
    """It is tried again, and changes are written."""
    monkeypatch.setattr(writer_module, "CHORE_SECONDS", 0.0)
    errors = [sqlite3.OperationalError("disk I/O error")]

    def remove(self: AgeLimit, connection: sqlite3.Connection) -> bool:
        if errors:
            raise errors.pop()
        monkeypatch.setattr(writer_module, "CHORE_SECONDS", 3600.0)
        return False

    monkeypatch.setattr(AgeLimit, "remove_batch", remove)
    file = StateFile(path)
    file.start()
    async with asyncio.timeout(HANG_SECONDS):
        while writer_module.CHORE_SECONDS == 0.0:
            await asyncio.sleep(0.01)
    file.usage_rows.hold("r1", NOW, ("r1",))
    await asyncio.to_thread(file.close)
    assert "could not be cleaned up: disk I/O error" in caplog.text and not file.writer.lost
