"""SQLite file of the store: its schema, its version, and the lock that keeps a second server out."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from app.settings import SettingsError
from app.store.page_part import PAGE_ROWS
from app.store.parts import PARTS

APPLICATION_ID = 0x43617253  # PRAGMA application_id of these files
SCHEMA_VERSION = 5  # in PRAGMA user_version
BUSY_SECONDS = 2.0  # time for which another process may lock the file before a write fails
MODE = 0o600  # texts of users are in it

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE state (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{"".join(part.schema for part in PARTS)}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
# From the version before, which lacks the rows of the chat page.
UPGRADE = f"""
BEGIN IMMEDIATE;
{PAGE_ROWS.schema}
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


class StoreError(SettingsError):
    """The file cannot be used; the message names the file and the reason."""


class StoreUnavailable(StoreError):
    """There is no place for the file, or no way to it: a missing or read-only folder, or a full disk."""


class StoreHeld(StoreError):
    """Another server has the file."""


UNAVAILABLE_CODES = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def is_unavailable(error: Exception) -> bool:
    """Return whether an error is one of the folder or the disk, and not of the file's content."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in UNAVAILABLE_CODES  # the rest is the extended code
    return isinstance(error, OSError)


class StoreLock:
    """Lock of a store, which the kernel releases when its process ends in any way."""

    def __init__(self, path: Path) -> None:
        """Raise `StoreHeld` if another server has the lock, and `OSError`."""
        self._file: int | None = os.open(
            path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE
        )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise StoreHeld("another server uses it; give each server a --store of its own") from None

    def release(self) -> None:
        """Let another server use the store. Further calls do nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def connect(path: Path) -> sqlite3.Connection:
    """Open the file for the one thread that writes it, create it if it is missing, and upgrade it from the version
    before. Raises `StoreError` for another program's file or another version, and `sqlite3.Error`.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))  # before SQLite creates it for everyone
    connection = sqlite3.connect(path.absolute(), timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        if _versions(connection) == (APPLICATION_ID, SCHEMA_VERSION - 1):
            connection.executescript(UPGRADE)
        if not check(connection):
            connection.execute("PRAGMA journal_mode = WAL")  # a commit appends to one file and waits for no disk
            connection.executescript(SCHEMA)
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def read_only(path: Path, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open an existing file for reading, beside a server that writes it. Raises `sqlite3.Error`."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=busy_seconds)


def check(connection: sqlite3.Connection) -> bool:
    """Return whether the file already has the tables. Raises `StoreError`."""
    application, version = _versions(connection)
    if application != APPLICATION_ID:
        if version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError("it is a database of another application")
        return False
    if version != SCHEMA_VERSION:
        raise StoreError(f"it has version {version}; this Carousel supports version {SCHEMA_VERSION}")
    return True


def _versions(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the application of a file, and the version of its schema."""
    names = ("application_id", "user_version")
    application, version = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return application, version
