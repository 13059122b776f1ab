"""Metering: one row per ended request in an SQLite file, for billing.

Owns the file's schema. `record` never waits: while the file is locked, full or missing, rows are kept in memory, up to
a bound. app/cli/usage.py reads the file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.admission.tenants import TIER_OF_CLASS
from app.generation.generation import ABANDONED_CODE, Generation
from app.settings import SettingsError
from app.store.usage_rows import UsageRows
from app.store.writer import Write, Writer
from app.streams.stream_log import ChoiceFinished, Failure

SCHEMA_VERSION = 1  # of the file's schema, in PRAGMA user_version
APPLICATION_ID = 0x4361726F  # PRAGMA application_id of these files
COMMIT_SECONDS = 0.2  # rows within this time share a commit; a killed process loses no more
POLL_SECONDS = 0.01
BUSY_SECONDS = 2.0  # time for which another process may lock the file before a write fails
MAX_WAITING_ROWS = 100_000  # rows in memory, about 50 MB

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS usage (
    request_id TEXT NOT NULL PRIMARY KEY,
    ended_at REAL NOT NULL,        -- Unix seconds, UTC
    tenant TEXT NOT NULL,
    tier TEXT NOT NULL,            -- priority, default, flex
    model TEXT NOT NULL,
    outcome TEXT NOT NULL,         -- stop, length, abort, error
    input_tokens INTEGER NOT NULL, -- 0 for a request that never had a slot
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    slot_seconds REAL NOT NULL,    -- of all its choices, in whole microseconds
    wall_seconds REAL NOT NULL,
    slots INTEGER NOT NULL         -- of the server that served it: what a slot-second is a share of
);
CREATE INDEX IF NOT EXISTS usage_ended_at ON usage (ended_at);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


class MeteringError(SettingsError):
    """The file cannot be used; the message names the file and the reason."""


class Row(NamedTuple):
    """Usage of one request, in the order of the table's columns."""

    request_id: str
    ended_at: float
    tenant: str
    tier: str
    model: str
    outcome: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    slot_seconds: float
    wall_seconds: float
    slots: int

    @classmethod
    def of(cls, generation: Generation, tenant: str, model: str, slots: int) -> Row:
        """Return the row of a request that has just ended. Token counts are those of its usage block, except for a
        request that never had a slot, which has no input tokens.
        """
        request, timeline = generation.request, generation.timeline
        assert timeline.closed_at is not None, f"request {request.id} has not ended"
        # One that was adopted after its end has tokens only.
        had_slot = generation.timing.started is not None or generation.completion_tokens > 0
        return cls(
            request.id,
            round(time.time(), 6),  # deliberately the wall clock: bills go by the calendar
            tenant,
            TIER_OF_CLASS[request.service_class],
            model,
            _outcome(generation),
            len(request.prompt) if had_slot else 0,
            generation.cached_tokens,
            generation.completion_tokens,
            round(timeline.slot_seconds, 6),
            round(timeline.closed_at - timeline.arrived, 6),
            slots,
        )


INSERT = f"INSERT OR IGNORE INTO usage ({', '.join(Row._fields)}) VALUES ({', '.join('?' * len(Row._fields))})"


def _outcome(generation: Generation) -> str:
    """Return one outcome for all choices: the worst one."""
    last = generation.log.records[-1]
    if isinstance(last, Failure):
        return "abort" if last.code == ABANDONED_CODE else "error"
    reasons = {record.reason for record in generation.log.records if isinstance(record, ChoiceFinished)}
    return next((outcome for outcome in ("abort", "length") if outcome in reasons), "stop")


def check(connection: sqlite3.Connection) -> bool:
    """Return whether the file already has the table. Raises `MeteringError` for another program's file or a newer
    version, and `sqlite3.Error` for a file that cannot be read.
    """
    connection.execute("BEGIN")  # another process may be creating it between two statements
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        is_empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        connection.rollback()
    if application != APPLICATION_ID:
        if version or not is_empty:
            raise MeteringError("it is a database of another application")
        return False
    if version != SCHEMA_VERSION:
        raise MeteringError(f"it has version {version}; this Carousel supports version {SCHEMA_VERSION}")
    return True


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open the file for writing, and create it if it is missing. Raises `MeteringError` or `sqlite3.Error`."""
    # absolute, because `:memory:` is also a valid file name
    connection = sqlite3.connect(path.absolute(), timeout=busy_seconds)
    try:
        if not check(connection):
            _use_wal(connection, busy_seconds)
            connection.executescript(SCHEMA)
        connection.execute("PRAGMA synchronous = NORMAL")
        # Every commit is copied to the main file at once: a moved or copied file is complete, and a loss of power costs
        # no more than a killed process. Only this thread waits for the disk, five times a second.
        connection.execute("PRAGMA wal_autocheckpoint = 1")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Change to the mode in which readers and the writer do not wait for each other. SQLite does not wait by itself for
    another process that does the same.
    """
    ends_at = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= ends_at:
                raise
        time.sleep(POLL_SECONDS)


class Metering:
    """Rows to be written. Created, started and closed on the event loop; written by a thread."""

    def __init__(
        self,
        path: Path,
        *,
        most_waiting: int = MAX_WAITING_ROWS,
        busy_seconds: float = BUSY_SECONDS,
        connect: Callable[[Path, float], sqlite3.Connection] = connect,
    ) -> None:
        """Raise `MeteringError` if the file cannot be used."""
        self._writer = Writer(
            path,
            lambda path: connect(path, busy_seconds),
            name="metering",
            unit="rows",
            commit_seconds=COMMIT_SECONDS,
            max_changes=most_waiting,
        )
        try:
            connect(path, busy_seconds).close()
        except (sqlite3.Error, OSError, MeteringError) as error:
            raise MeteringError(f"metering: {path}: {error}") from None

    def start(self) -> None:
        """Start the thread."""
        self._writer.start()

    @property
    def waiting(self) -> int:
        """Return the number of rows that are not written yet."""
        return self._writer.pending

    @property
    def lost(self) -> int:
        """Return the number of rows that did not fit in memory, or were not written before the end."""
        return self._writer.lost

    def row_of(self, generation: Generation, tenant: str, model: str, slots: int) -> Row:
        """Return the row of a request that has just ended."""
        return Row.of(generation, tenant, model, slots)

    def replay(self, row: Sequence[str | int | float], written: Callable[[], object]) -> None:
        """Queue a row of an earlier process, which the file may have already."""
        if len(row) == len(Row._fields):
            self.record(Row._make(row), written)
        else:  # of another schema
            written()

    def record(self, row: Row, written: Callable[[], object] | None = None) -> bool:
        """Queue a row, and return whether it fits in memory. Returns at once, independently of the disk. A row that
        exists stays unchanged, because a commit that seemed to fail may have succeeded. written: called in another
        thread when it is in the file.
        """
        return self._writer.put(Write(INSERT, row), written=written)

    def record_held(self, row: Row, rows: UsageRows) -> None:
        """Queue a row that a store keeps until it is in the file."""
        rows.hold(row.request_id, row.ended_at, row)
        if not self.record(row, partial(rows.settle, row.request_id)):
            rows.settle(row.request_id)

    def close(self) -> None:
        """Write pending rows and stop. Blocks for a bounded time; further calls do nothing."""
        self._writer.close()
