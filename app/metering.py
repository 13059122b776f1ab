"""Metering: one row for each request that ended, in an SQLite file, to bill from.

Owns the file's shape and the thread that writes it. `record` never waits: rows are kept in memory until they are
written, however long the file is locked, full or gone, up to a bound. app/usage.py reads what is written here.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from app.generation import ABANDONED, Generation
from app.settings import SettingsError
from app.streams import Failure, Finished
from app.tenants import TIER_OF_CLASS

log = logging.getLogger("carousel.metering")

VERSION = 1  # of the file's shape, in PRAGMA user_version
APPLICATION = 0x4361726F  # PRAGMA application_id: the file is ours
COMMIT_SECONDS = 0.2  # rows of that time share a commit; a process that is killed loses no more
RETRY_SECONDS = 1.0
COMPLAIN_SECONDS = 60.0
BUSY_SECONDS = 2.0  # another process may hold the file for that long before it counts as locked
CLOSE_SECONDS = 10.0  # a disk that does not answer holds up the end of the server no longer
MOST_WAITING = 100_000  # rows in memory, about 50 MB
BATCH = 2_000  # rows in a commit

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
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""


class MeteringRefused(SettingsError):
    """The file cannot be used; the message names it and says why."""


class Row(NamedTuple):
    """What one request used, in the order of the table's columns."""

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
        """Of a request that has just ended. Counts are those of its usage block, but for one that never had a slot:
        nothing was read for it."""
        request, audit = generation.request, generation.audit
        assert audit.closed_at is not None, f"request {request.id} has not ended"
        return cls(
            request.id,
            round(time.time(), 6),  # deliberately the wall clock: bills go by the calendar
            tenant,
            TIER_OF_CLASS[request.service_class],
            model,
            _outcome(generation),
            len(request.prompt) if generation.timing.started is not None else 0,
            generation.cached_tokens,
            generation.completion_tokens,
            round(audit.slot_seconds, 6),
            round(audit.closed_at - audit.arrived, 6),
            slots,
        )


INSERT = f"INSERT OR IGNORE INTO usage ({', '.join(Row._fields)}) VALUES ({', '.join('?' * len(Row._fields))})"


def _outcome(generation: Generation) -> str:
    """One word for all its choices: the worst."""
    last = generation.log.records[-1]
    if isinstance(last, Failure):
        return "abort" if last.code == ABANDONED else "error"
    reasons = {record.reason for record in generation.log.records if isinstance(record, Finished)}
    return next((word for word in ("abort", "length") if word in reasons), "stop")


def check(connection: sqlite3.Connection) -> bool:
    """Whether the file has our table already. Raises `MeteringRefused` for a file that is not ours, or of a newer
    version, and `sqlite3.Error` for one that cannot be read."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        if version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise MeteringRefused("it is a database of something else")
        return False
    if version != VERSION:
        raise MeteringRefused(f"it is of version {version}; this Carousel knows version {VERSION}")
    return True


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """The file, made if there is none, ready to be written. Raises `MeteringRefused` or `sqlite3.Error`."""
    connection = sqlite3.connect(path.absolute(), timeout=busy_seconds)  # `:memory:` is a file's name too
    try:
        if not check(connection):
            connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
            connection.executescript(SCHEMA)
        connection.execute("PRAGMA synchronous = NORMAL")
        # Every commit goes on into the file itself: nothing is missing from one that is moved or copied, and a loss of
        # power costs no more than a killed process. The thread alone waits for the disk, five times a second.
        connection.execute("PRAGMA wal_autocheckpoint = 1")
    except BaseException:
        connection.close()
        raise
    return connection


class Metering:
    """Rows on their way to the file. Made, started and closed on the event loop; written on a thread."""

    def __init__(
        self,
        path: Path,
        *,
        most_waiting: int = MOST_WAITING,
        busy_seconds: float = BUSY_SECONDS,
        connect: Callable[[Path, float], sqlite3.Connection] = connect,
    ) -> None:
        """Raises `MeteringRefused` when the file cannot be used."""
        self.lost = 0  # rows that found no room in memory, or were not written before the end
        self._path = path
        self._most_waiting = most_waiting
        self._busy_seconds = busy_seconds
        self._connect = connect
        self._lock = threading.Lock()  # of the rows that wait; nobody holds it while the disk is waited for
        self._rows: deque[Row] = deque()
        self._came = threading.Event()  # rows, or the end
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metering", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # which file the connection is to
        self._complained_at = -COMPLAIN_SECONDS
        self._failing = False
        try:
            self._connect(path, busy_seconds).close()
        except (sqlite3.Error, OSError, MeteringRefused) as error:
            raise MeteringRefused(f"metering: {path}: {error}") from None

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows that are not written yet."""
        return len(self._rows)

    def ended(self, generation: Generation, tenant: str, model: str, slots: int) -> None:
        """`record` what a request used that has just ended."""
        self.record(Row.of(generation, tenant, model, slots))

    def record(self, row: Row) -> None:
        """Have a row written soon. Returns at once, whatever the disk does."""
        with self._lock:
            if len(self._rows) >= self._most_waiting:
                self.lost += 1
                return
            self._rows.append(row)
        self._came.set()

    def close(self) -> None:
        """Write what waits, and end. Blocks for `CLOSE_SECONDS` at the most; once more does nothing."""
        if self._closing.is_set() or self._thread.ident is None:
            return
        self._closing.set()
        self._came.set()
        self._thread.join(CLOSE_SECONDS)
        with self._lock:
            left = len(self._rows)
            self.lost += left
            self._rows.clear()
        if left:
            log.error("metering: %s could not be written at the end: %d rows are lost", self._path, left)

    # On the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._came.wait()
            self._closing.wait(COMMIT_SECONDS)
            self._came.clear()
            while not self._flush() and not self._closing.wait(RETRY_SECONDS):
                pass
        self._flush()
        self._disconnect()

    def _flush(self) -> bool:
        """Write what waits. False when that fails: the rows still wait then."""
        while self._rows:
            with self._lock:
                rows = list(islice(self._rows, BATCH))
            try:
                self._write(rows)
            except Exception as error:  # whatever it is, no request may feel it, and the thread goes on
                self._disconnect()
                self._complain(error)
                return False
            with self._lock:
                for _ in range(min(len(rows), len(self._rows))):  # fewer: `close` gave them up meanwhile
                    self._rows.popleft()
        if self._failing:
            self._failing = False
            log.warning("metering: %s is written again", self._path)
        return True

    def _write(self, rows: list[Row]) -> None:
        """All of them or none. A row that is there already stays as it is: a commit may only have seemed to fail."""
        if self._connection is None or self._identity() != self._file:
            self._disconnect()  # first, as SQLite keeps what it knows of a file under the file's name
            self._connection = self._connect(self._path, self._busy_seconds)
            self._file = self._identity()
        with self._connection:
            self._connection.executemany(INSERT, rows)

    def _identity(self) -> tuple[int, int] | None:
        """Which file the path leads to now: one that was moved away or removed would take rows that nobody finds."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _complain(self, error: Exception) -> None:
        self._failing = True
        now = time.monotonic()
        if now - self._complained_at >= COMPLAIN_SECONDS:
            self._complained_at = now
            log.error(
                "metering: %s cannot be written (%s): %d rows wait, %d are lost",
                self._path,
                error,
                len(self._rows),
                self.lost,
            )
