"""Writer: the thread that writes a store, one transaction for the changes of 50 ms.

Callers never wait for the disk. While it is full, locked or gone, changes wait in memory up to a bound; beyond it new
ones are lost, which the journal detects when it is read.
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
from typing import NamedTuple, Protocol

from app.store.database import StoreError, StoreLock

log = logging.getLogger("carousel.store")

COMMIT_SECONDS = 0.05
RETRY_SECONDS = 1.0
LOG_INTERVAL_SECONDS = 60.0
CLOSE_SECONDS = 10.0  # maximum delay of the server's end by a disk that does not respond
MAX_PENDING_BYTES = 64 << 20
MAX_COMMIT_CHANGES = 5_000
CHANGE_BYTES = 200  # of a change in memory, beside its values


class Change(Protocol):
    """Change of the store. It is applied again if its transaction fails."""

    @property
    def size(self) -> int:
        """Return its bytes in memory, about."""
        ...

    def apply(self, connection: sqlite3.Connection) -> None:
        """Make the change, in the writer thread and inside of a transaction."""
        ...


class Write(NamedTuple):
    """Change by one statement with its values."""

    statement: str
    values: tuple[str | bytes | int | float | None, ...]

    @property
    def size(self) -> int:
        """Return its bytes in memory, about."""
        return CHANGE_BYTES + sum(len(value) for value in self.values if isinstance(value, str | bytes))

    def apply(self, connection: sqlite3.Connection) -> None:
        connection.execute(self.statement, self.values)


class _Mark(NamedTuple):
    """No change: its end is that of the changes before it."""

    size: int = CHANGE_BYTES

    def apply(self, connection: sqlite3.Connection) -> None:
        pass


class Writer:
    """Queue of changes of one file. Until `start` its connection belongs to the creator."""

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        """Raise `StoreError` if the file cannot be used."""
        self.lost = 0  # changes
        self.queued = 0  # changes; the number of the last one
        self.written = 0  # changes; each with a number up to this is on disk
        self.written_bytes = 0
        self.is_failing = False
        self.pending_bytes = 0
        self._path = path
        self._connect = connect
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_file = StoreLock(path)
            try:
                self.connection = connect(path)
            except BaseException:
                self._lock_file.release()
                raise
        except (sqlite3.Error, OSError, StoreError) as error:
            raise StoreError(f"store: {path}: {error}") from None
        self._lock = threading.Lock()  # of the queue; not held during disk access
        self._changes: deque[tuple[Change, Callable[[], object] | None]] = deque()
        self._wakeup = threading.Event()
        self._hurry = threading.Event()  # a caller waits for the next commit
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._logged_at = -LOG_INTERVAL_SECONDS

    @property
    def is_running(self) -> bool:
        """Return whether changes are being written."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, change: Change, done: Callable[[], object] | None = None) -> bool:
        """Queue a change, and return whether there was room for it. Returns at once, independently of the disk. done:
        called in any thread when the change is written, or was tried to be, or is lost.
        """
        size = change.size
        with self._lock:
            is_lost = self.pending_bytes + size > MAX_PENDING_BYTES
            if not is_lost:
                self._changes.append((change, done))
                self.queued += 1
                self.pending_bytes += size
        if is_lost:
            self.lost += 1
            _call(done)
        self._wakeup.set()
        return not is_lost

    def commit_soon(self, done: Callable[[], object]) -> None:
        """Commit without delay. done: called in any thread when all changes before are written, or were tried to be."""
        self.put(_Mark(), done)
        self._hurry.set()

    def close(self) -> None:
        """Write pending changes and stop. Blocks for at most `CLOSE_SECONDS`; further calls do nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._hurry.set()
        self._wakeup.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        if self._changes:
            log.error(
                "store: %s could not be written before the end: %d changes are lost", self._path, len(self._changes)
            )
        self._lock_file.release()

    # Writer thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wakeup.wait()
            self._hurry.wait(COMMIT_SECONDS)
            self._hurry.clear()
            self._wakeup.clear()
            while not self._flush() and not self._closing.wait(RETRY_SECONDS):
                pass
        self._flush()
        self.connection.close()

    def _flush(self) -> bool:
        """Write pending changes. Return False if that fails; they stay pending."""
        while self._changes:
            with self._lock:
                changes = list(islice(self._changes, MAX_COMMIT_CHANGES))
            try:
                with self.connection:
                    for change, _ in changes:
                        change.apply(self.connection)
            except sqlite3.Error as error:
                self._log_failure(error)
                for at, (change, done) in enumerate(changes):  # no answer waits for a disk that does not work
                    self._changes[at] = (change, None)
                    _call(done)
                return False
            size = sum(change.size for change, _ in changes)
            with self._lock:
                for _ in changes:
                    self._changes.popleft()
                self.pending_bytes -= size
            self.written += len(changes)
            self.written_bytes += size
            for _, done in changes:
                _call(done)
        if self.is_failing:
            self.is_failing = False
            log.warning("store: %s can be written again", self._path)
        return True

    def _log_failure(self, error: sqlite3.Error) -> None:
        self.is_failing = True
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = now
            log.error(
                "store: %s cannot be written (%s): %d changes are pending, %d are lost",
                self._path,
                error,
                len(self._changes),
                self.lost,
            )


def _call(done: Callable[[], object] | None) -> None:
    if done is not None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            done()
