"""Stores of several API processes: their names, their sizes, and those of processes that a service no longer has."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.__main__ import main
from app.cli.announcements import warn
from app.cli.listener import Listener
from app.cli.open_store import open_store
from app.settings import Settings
from app.store.database import StoreError, connect
from app.store.location import files_of_processes, process_file
from engine.config import EngineConfig

NAMES = ("s.db", "store-8000.db", "plain", "a.b.sqlite", "s-api1.db")


def settings(**options) -> Settings:
    return Settings(engine=EngineConfig(model="fake"), model_name="fake", **options)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


@given(st.sampled_from(NAMES), st.integers(0, 63), st.integers(0, 63))
def test_each_process_has_a_file_of_its_own(name: str, one: int, two: int):
    """In the same folder and with the same suffix; that of the first one is the file itself."""
    path = Path("folder") / name
    files = process_file(path, one), process_file(path, two)
    assert (files[0] == files[1]) == (one == two) and process_file(path, 0) == path
    assert {file.parent for file in files} == {path.parent} and {file.suffix for file in files} == {path.suffix}


def test_the_names_of_files_have_the_numbers_of_their_processes():
    assert process_file(Path("/a/store-8000.db"), 1) == Path("/a/store-8000-api1.db")
    assert process_file(Path("plain"), 12) == Path("plain-api12")


def test_existing_files_are_found_by_number(tmp_path: Path):
    """Not those of other stores, of their logs and locks, or folders."""
    for name in ("s.db", "s-api10.db", "s-api2.db", "s-api1.db-wal", "s-api1.db.lock", "s-api0.db", "s-api01.db"):
        (tmp_path / name).touch()
    (tmp_path / "s-api3.db").mkdir()
    found = files_of_processes(tmp_path / "s.db")
    assert list(found) == [0, 2, 10] and found[10] == tmp_path / "s-api10.db"
    assert list(files_of_processes(tmp_path / "s.db", 3)) == [10]
    assert files_of_processes(tmp_path / "none" / "s.db") == {}


@pytest.mark.parametrize("is_named", [False, True])
def test_a_process_opens_its_own_file(tmp_path: Path, monkeypatch, sock: socket.socket, is_named: bool):
    """At the place of the default file, or of the file that the option names; each may keep its part of the bytes."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    port = sock.getsockname()[1]
    base = tmp_path / ("s.db" if is_named else f"store-{port}.db")
    options = settings(store=str(base) if is_named else None, api_processes=3, store_size=1000)
    listener = Listener.of_several(sock, replaces=False, is_port_chosen=True)
    opened = [open_store(options, listener, index) for index in range(3)]
    for index, file in enumerate(opened):
        assert file is not None and file.records.limits.bytes == 333
        assert process_file(base, index).is_file()
    with pytest.raises(StoreError, match=r"-api1\.db: another server uses it"):
        open_store(options, listener, 1)
    for file in opened:
        assert file is not None
        file.close()


def test_processes_at_an_unknown_port_keep_nothing(tmp_path: Path, monkeypatch, sock: socket.socket):
    """As no later server would find it; nor do they with --store none."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    for option, is_port_chosen in ((None, False), ("none", True)):
        listener = Listener.of_several(sock, replaces=False, is_port_chosen=is_port_chosen)
        assert open_store(settings(store=option, api_processes=2), listener, 1) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("store", "port", "processes", "named"),
    [
        ("s.db", 8000, 1, "answers in {0}/s-api1.db, {0}/s-api2.db cannot be reached.* --api-processes 3"),
        ("s.db", None, 2, "s-api2.db cannot be reached.* --api-processes 3"),
        (None, 8000, 1, "store-8000-api4.db cannot be reached.* --api-processes 5"),
        ("s.db", 8000, 3, None),
        (None, None, 1, None),
        ("none", 8000, 1, None),
        ("other.db", 8000, 1, None),
    ],
)
def test_files_of_more_processes_than_there_are_have_one_warning(
    tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture, store, port, processes: int, named: str | None
):
    """With the option that reaches them; they are left alone."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    names = {"s.db", "s-api1.db", "s-api2.db", "store-8000-api4.db", "none-api1.db"}
    for name in names:
        (tmp_path / name).touch()
    option = str(tmp_path / store) if store not in (None, "none") else store
    caplog.set_level(logging.WARNING)
    warn(settings(store=option, api_processes=processes), port)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (named is not None)
    if named is not None:
        assert re.search(named.format(re.escape(str(tmp_path))), messages[0])
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_store_command_finds_the_files_of_all_processes(tmp_path: Path, monkeypatch, capsys):
    """If no file is named; a named one is shown alone."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    path = tmp_path / "store-8000.db"
    for index in (0, 1):
        connect(process_file(path, index)).close()
    assert main(["store", "show"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ", version" in line] == [
        str(path),
        str(process_file(path, 1)),
    ]
    assert main(["store", "show", str(process_file(path, 1))]) == 0
    assert capsys.readouterr().out.count(", version") == 1
