"""A store after a loss of power: a file whose last writes are missing or torn."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.tenants import ANONYMOUS
from app.store.state_file import StateFile
from tests.app.store.test_journal import entry, token
from tests.profiles import examples

TOKENS = list(range(300))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store as it is beside a running server, with all of its changes in the write-ahead log."""
    folder = tmp_path_factory.mktemp("store")

    async def write() -> None:
        file = StateFile(folder / "s.db")
        sink = file.journal.begin(entry(), lambda event: None, is_exact=True)
        session = file.sessions.recorder("s1")
        session.save(ANONYMOUS, b"{}")
        for number in TOKENS:
            sink(token(number))
            session.put(f"i{number}", b"{}", [f"i{each}" for each in range(number + 1)])
            if number % 50 == 49:
                file.flush()
                file.writer._flush()  # a transaction of its own
        for name in ("s.db", "s.db-wal"):
            shutil.copy(folder / name, folder / f"copy-{name}")
        file.writer.start()
        await asyncio.to_thread(file.close)

    asyncio.run(write())
    return folder


@given(lost=st.integers(0, 200_000), garbage=st.binary(max_size=64))
@settings(max_examples=examples(60))
def test_what_is_left_of_a_torn_file_is_a_beginning(files: Path, tmp_path_factory, lost: int, garbage: bytes):
    """Whatever the last bytes of the log are: whole transactions are there, and the others are not."""
    path = tmp_path_factory.mktemp("torn") / "s.db"
    shutil.copy(files / "copy-s.db", path)
    data = (files / "copy-s.db-wal").read_bytes()
    path.with_name("s.db-wal").write_bytes(data[: max(0, len(data) - lost)] + garbage)
    file = StateFile(path)
    answers, sessions = file.journal.read(), file.sessions.read()
    file.close()
    tokens = [each.id for saved in answers for each in saved.tokens]
    items = [item for saved, _ in sessions for item in saved.items]
    assert tokens == TOKENS[: len(tokens)] and len(tokens) % 50 == 0
    assert len(items) == len(tokens)
    assert lost or garbage or tokens == TOKENS
