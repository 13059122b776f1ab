"""The file of a store: its default place, files that cannot be used, and a file that another server has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.cli.listener import Listener, Origin
from app.cli.open_store import open_store
from app.engine_client.client import EngineClient
from app.server import create_app
from app.settings import Settings, SettingsError
from app.store import state_file as state_file_module
from app.store.database import APPLICATION_ID, SCHEMA_VERSION, StoreError, connect
from app.store.location import default_file
from app.store.state_file import StateFile
from app.store.writer import Write
from engine.config import EngineConfig
from tests.app.engine_client.test_client import CONFIG, fake_engine
from tests.app.routes.test_http import BODY, CHAT, ready
from tests.app.text_models import byte_level
from tests.limits import HANG_SECONDS

INSERT = "INSERT INTO state (name, value) VALUES ('x', '')"


def settings(**options) -> Settings:
    return Settings(engine=EngineConfig(model="fake"), model_name="fake", **options)


@pytest.fixture
def listener():
    """Yield a listener at a port that its operator chose."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield Listener(sock, Origin.OWN)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state folder, which does not exist yet."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": "/x"}, "/var/lib/a/store-8000.db"),
        ({"XDG_STATE_HOME": "/x"}, "/x/carousel/store-8000.db"),
        ({}, "~/.local/state/carousel/store-8000.db"),
    ],
)
def test_the_default_file_is_in_the_state_folder(environment: dict[str, str], expected: str):
    assert default_file(8000, environment) == Path(expected).expanduser()


def test_a_server_has_a_store_of_its_own_by_default(folder: Path, listener: Listener):
    """It is named by the port, and only its owner can read the folder and the file."""
    file = open_store(settings(), listener)
    assert file is not None
    file.close()
    path = folder / f"store-{listener.sock.getsockname()[1]}.db"
    assert path.stat().st_mode & 0o077 == folder.stat().st_mode & 0o077 == 0


def test_nothing_is_kept_where_no_later_server_would_find_it(folder: Path):
    """With --port 0, and with --store none."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert open_store(settings(), Listener(sock, Origin.OWN, is_port_chosen=False)) is None
        assert open_store(settings(store="none"), Listener(sock, Origin.OWN)) is None
    assert not folder.exists()


def test_an_empty_name_is_refused(listener: Listener):
    with pytest.raises(SettingsError, match="store must be the path of a file or none, got an empty text"):
        open_store(settings(store=""), listener)


def block_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.touch()  # a file, as tests may run as root, for which no folder is read-only


def fill_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect_to_full_disk(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA max_page_count = 1")
        connection.executescript("CREATE TABLE a (x); CREATE TABLE b (x);")
        return connection

    monkeypatch.setattr(state_file_module, "connect", connect_to_full_disk)


def remove_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)


@pytest.mark.parametrize("prevent", [block_folder, fill_disk, remove_home])
def test_without_a_place_for_the_default_file_nothing_is_kept(
    folder: Path, listener: Listener, monkeypatch, caplog, prevent
):
    """The log has one warning with the remedy, as no option named the file."""
    prevent(folder, monkeypatch)
    assert open_store(settings(), listener) is None
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "--store none" in record.getMessage()


@pytest.mark.parametrize("prevent", [block_folder, fill_disk])
def test_a_file_that_was_asked_for_is_refused_without_a_place(folder: Path, listener: Listener, monkeypatch, prevent):
    prevent(folder, monkeypatch)
    with pytest.raises(StoreError, match=r"s\.db: "):
        open_store(settings(store=str(folder / "s.db")), listener)


def tear(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + bytes(4080))


def tear_a_table(path: Path) -> None:
    """Overwrite all pages after the first one, which has the header."""
    with contextlib.closing(connect(path)) as connection, connection:
        connection.execute("INSERT INTO request (id, owner, created, entry) VALUES ('x', 'o', 0, x'00')")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))


def create_foreign_table(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name)")


def create_older_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION - 2}")


@pytest.mark.parametrize("damage", [tear, tear_a_table, create_foreign_table, create_older_version])
def test_a_default_file_with_other_content_is_refused(folder: Path, listener: Listener, damage):
    """The error names the file and the remedy: it may have answers that a user waits for."""
    folder.mkdir()
    damage(folder / f"store-{listener.known_port}.db")
    with pytest.raises(StoreError, match=r"store-\d+\.db: .*; move the file away, name another one with --store FILE"):
        file = open_store(settings(), listener)
        assert file is not None
        try:
            file.read()
        finally:
            file.close()


async def test_a_file_of_the_server_before_is_waited_for(tmp_path: Path):
    """Changes wait in memory, and no answer waits for them; cursors are those of the server before."""
    first = StateFile(tmp_path / "s.db")
    second = StateFile(tmp_path / "s.db", waits=True)
    assert second.is_waiting and second.epoch == first.epoch
    done: list[bool] = []
    second.writer.put(Write(INSERT, ()), lambda: done.append(True))
    assert done == [True] and second.writer.pending == 1
    waiting = asyncio.create_task(second.wait())
    first.writer.start()
    await asyncio.to_thread(first.close)
    async with asyncio.timeout(HANG_SECONDS):
        await waiting
    assert not any(second.read()) and not second.is_waiting
    second.start()
    await asyncio.to_thread(second.close)
    assert done == [True]
    with sqlite3.connect(tmp_path / "s.db") as connection:
        assert connection.execute("SELECT count(*) FROM state WHERE name = 'x'").fetchone() == (1,)


async def test_changes_that_wait_for_another_server_are_bounded(tmp_path: Path, monkeypatch, caplog):
    """Those beyond the bound are lost and counted, and so are all if this server ends first."""
    monkeypatch.setattr("app.store.writer.MAX_PENDING_BYTES", 1000)
    first = StateFile(tmp_path / "s.db")
    second = StateFile(tmp_path / "s.db", waits=True)
    for _ in range(10):
        second.writer.put(Write(INSERT, ("x" * 200,)))
    assert second.writer.lost == 8
    second.close()
    assert second.writer.lost == 10 and "2 changes are lost" in caplog.text
    first.close()


def test_a_file_that_was_moved_is_created_anew_with_the_same_epoch(tmp_path: Path):
    """Later changes are not written to the moved file, and cursors of clients stay valid."""
    file = StateFile(tmp_path / "s.db")
    file.writer.start()
    (tmp_path / "s.db").rename(tmp_path / "old.db")
    file.writer.put(Write(INSERT, ()))
    file.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT count(*) FROM state WHERE name = 'x'").fetchone() == (1,)
        assert connection.execute("SELECT value FROM state WHERE name = 'epoch'").fetchone() == (file.epoch,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_file_that_cannot_be_taken_over_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """It was torn while the server before ended. This one serves on, and /health has the state of the store."""
    first = StateFile(tmp_path / "s.db")
    second = StateFile(tmp_path / "s.db", waits=True)
    app = create_app(settings(), EngineClient(CONFIG, fake_engine), byte_level(), state_file=second)

    def serve() -> None:
        with TestClient(app, base_url="http://127.0.0.1:8000") as http:
            assert ready(http).get("/health").json()["store"] == "waiting"
            first.close()
            tear(tmp_path / "s.db")
            for path in tmp_path.glob("s.db-*"):
                path.unlink()
            while (health := http.get("/health").json()).get("store") == "waiting":
                pass
            assert health == {"status": "ready", "store": "degraded"}
            assert http.post(CHAT, json=BODY).status_code == 200

    await asyncio.wait_for(asyncio.to_thread(serve), HANG_SECONDS)
    assert "the answers of the server before are lost" in caplog.text
