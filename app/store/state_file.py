"""StateFile: the SQLite file of a server, its writer, and what is kept there."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from app.conversations.memory_store import MemoryStore
from app.store.coalesced_table import Aged, CoalescedTable
from app.store.conversations import FileStore
from app.store.database import (
    BUSY_SECONDS,
    StoreError,
    StoreHeld,
    StoreLock,
    StoreUnavailable,
    connect,
    is_unavailable,
    read_only,
)
from app.store.entries import Saved
from app.store.journal import Journal
from app.store.limit_tables import RATES, REFUSED_KEYS
from app.store.other_files import adopted_elsewhere
from app.store.page_rows import PageRows
from app.store.pruning import DAY_SECONDS, AgeLimit
from app.store.record_changes import FileLimits
from app.store.record_file import RecordFile
from app.store.record_queries import Unfinished
from app.store.sessions import SavedSession, SessionRecorder, SessionTable
from app.store.usage_rows import UsageRow, UsageRows
from app.store.writer import Writer

POLL_SECONDS = 0.2  # for the end of the server that has the file
ADVICE = "move the file away, name another one with --store FILE, or keep nothing with --store none"


class Found(NamedTuple):
    """State that an earlier process has left. elsewhere: IDs of those answers that another process has adopted.
    records: those without an end.
    """

    answers: list[Saved]
    elsewhere: set[str]
    records: list[Unfinished]
    sessions: list[tuple[SavedSession, SessionRecorder]]
    usage_rows: list[UsageRow]
    rates: list[Aged]
    refused_keys: list[Aged]


class StateFile:
    """State that survives the process. Each part has tables of its own, and all share one writer.

    epoch: of the cursors of all streams in it. is_waiting: another server, which this one replaces, still has the file.
    took_over: this one waited for it.
    """

    def __init__(
        self,
        path: Path,
        *,
        waits: bool = False,
        max_days: float = math.inf,
        record_bytes: int = 1 << 30,
        others: Sequence[Path] = (),
        page_file: Path | None = None,
        page_bytes: int = 64 << 20,
    ) -> None:
        """waits: a file that another server has is waited for. max_days: age after which records are removed.
        record_bytes: maximum size of all responses, conversations and chat completions. others: files of the other API
        processes. page_file: file with the rows of the chat page; None: this one. page_bytes: maximum bytes of those of
        one owner. Raises `StoreError` if the file cannot be used.
        """
        self._path = path
        self._others = others
        self._lock: StoreLock | None = None
        self.epoch = secrets.token_hex(3)
        self.is_waiting = self.took_over = False
        self._age_limit = AgeLimit(max_days)
        self.writer = Writer(path, self._connect, chore=self._age_limit.remove_batch)
        self.journal = Journal(self.writer)
        self.sessions = SessionTable(self.writer)
        self.usage_rows = UsageRows(self.writer)
        limits = FileLimits(record_bytes, max_days * DAY_SECONDS)
        self.records = RecordFile(path, self.writer, limits)
        self.conversations = FileStore(self.records, MemoryStore())
        self.page_rows = PageRows(page_file or path, page_bytes)
        self.rates = CoalescedTable(RATES, self.writer)
        self.refused_keys = CoalescedTable(REFUSED_KEYS, self.writer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._open()
            except StoreHeld:
                if not waits:
                    raise
                self.epoch = _epoch_of(path)
                self.is_waiting = self.took_over = self.writer.is_detached = True
        except (StoreError, OSError, sqlite3.Error) as error:
            raise _refusal(path, error) from None

    async def wait(self) -> None:
        """Wait until the server that has the file ends, and open it. Raises `StoreError`."""
        while self.is_waiting:
            await asyncio.sleep(POLL_SECONDS)
            try:
                with contextlib.suppress(StoreHeld):
                    await asyncio.to_thread(self._open)
                    self.is_waiting = False
            except (StoreError, OSError, sqlite3.Error) as error:
                raise _refusal(self._path, error) from None

    def read(self) -> Found:
        """Return the state that an earlier process has left, before `start`. Raises `StoreError`."""
        try:
            while self._age_limit.remove_batch(self.writer.connection):
                pass
            answers = self.journal.read()
            return Found(
                answers,
                adopted_elsewhere(answers, self._others),
                self.records.read_unfinished(),
                self.sessions.read(),
                self.usage_rows.read(),
                self.rates.read(),
                self.refused_keys.read(),
            )
        except sqlite3.Error as error:
            raise _refusal(self._path, error) from None

    def start(self) -> None:
        """Start to write, after everything was read."""
        self.writer.is_detached = False
        self.writer.start()

    def give_up(self) -> None:
        """Report the file as failing: it cannot be taken over, and changes stay in memory, within their bound."""
        self.is_waiting = False
        self.writer.is_failing = True

    def flush(self) -> None:
        """Queue what parts hold back."""
        self.journal.flush()
        self.rates.flush()
        self.refused_keys.flush()

    def close(self) -> None:
        """Write everything that is queued, in any thread. Blocks; further calls do nothing."""
        self.records.close()
        self.writer.close()
        if self._lock is not None:
            self._lock.release()

    def _open(self) -> None:
        self._lock = StoreLock(self._path)
        try:
            _ = self.writer.connection
        except BaseException:
            self._lock.release()
            raise

    def _connect(self, path: Path) -> sqlite3.Connection:
        """Open the file, or a new one, which gets the epoch of the cursors that clients have."""
        connection = connect(path)
        try:
            with connection:
                connection.execute("INSERT OR IGNORE INTO state (name, value) VALUES ('epoch', ?)", (self.epoch,))
            self.epoch = _read_epoch(connection) or self.epoch
        except BaseException:
            connection.close()
            raise
        return connection


def _read_epoch(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT value FROM state WHERE name = 'epoch'").fetchone()
    return None if row is None else str(row[0])


def _epoch_of(path: Path) -> str:
    """Return the epoch of a file that another server has, which may be creating it. Raises `StoreError`."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with contextlib.closing(read_only(path)) as connection:
                if (epoch := _read_epoch(connection)) is not None:
                    return epoch
        except sqlite3.OperationalError:  # the file or its tables do not exist yet
            pass
        if time.monotonic() > deadline:
            raise StoreError("another server has it, and it cannot be read")
        time.sleep(POLL_SECONDS)


def _refusal(path: Path, error: Exception) -> StoreError:
    """Return an error that names the file and the remedy."""
    if is_unavailable(error):
        return StoreUnavailable(f"store: {path}: {error}")
    if isinstance(error, StoreHeld):
        return StoreError(f"store: {path}: {error}")
    return StoreError(f"store: {path}: {error}; {ADVICE}")
