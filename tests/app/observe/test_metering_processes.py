"""One metering file of several API processes: rows of all, each once."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.observe.metering import Metering, Row, connect

PROCESSES = 4


def row(name: str, tenant: str) -> Row:
    return Row(name, 1.0, tenant, "default", "m", "stop", 3, 0, 5, 0.5, 1.0, 4)


def test_processes_that_create_a_file_at_once_all_get_it(tmp_path: Path):
    """None finds it locked, or half made."""
    together = threading.Barrier(PROCESSES)

    def create(number: int) -> str:
        together.wait()
        with contextlib.closing(connect(tmp_path / f"{number}.db", 30.0)) as connection:
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])

    with ThreadPoolExecutor(PROCESSES) as threads:
        for number in range(40):
            assert set(threads.map(create, [number] * PROCESSES)) == {"wal"}


@pytest.mark.parametrize("shared", [0, 200])
def test_a_request_that_several_processes_have_ended_has_one_row(tmp_path: Path, shared: int):
    """That of the first one to write it, beside the rows of its own requests."""
    writers = [Metering(tmp_path / "u.db") for _ in range(PROCESSES)]
    for writer in writers:
        writer.start()
    for number, writer in enumerate(writers):
        for index in range(200):
            name = f"shared {index}" if index < shared else f"{number}.{index}"
            assert writer.record(row(name, str(number)))
    for writer in writers:
        writer.close()
        assert (writer.waiting, writer.lost) == (0, 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "u.db")) as connection:
        [(rows, names)] = connection.execute("SELECT count(*), count(DISTINCT request_id) FROM usage")
        assert rows == names == shared + PROCESSES * (200 - shared)
