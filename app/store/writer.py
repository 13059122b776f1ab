"""Writer: the thread that writes an SQLite file, one transaction for the changes of some milliseconds.

Callers never wait for the disk. While it is full, locked or gone, changes wait in memory up to a bound; beyond it new
ones are lost, and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

COMMIT_SECONDS = 0.05  # changes within this time share a commit
SETTLE_SECONDS = 0.25  # for which what a client is told waits for its change to be written
RETRY_SECONDS = 1.0
CHORE_SECONDS = 3600.0
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


class _Queued(NamedTuple):
    """Change, with the functions for its end; see `Writer.put`."""

    change: Change
    done: Callable[[], object] | None
    written: Callable[[], object] | None


class Writer:
    """Queue of changes of one file. Until `start` its connection belongs to the creator."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection],
        *,
        name: str = "store",
        unit: str = "changes",
        commit_seconds: float = COMMIT_SECONDS,
        max_changes: float = math.inf,
        chore: Callable[[sqlite3.Connection], bool] | None = None,
    ) -> None:
        """connect: opens the file, and creates it if it is missing; called again after an error, and if the file was
        moved. name, unit: of the file and of its changes in the log. commit_seconds: changes within this time share a
        commit. chore: called each hour, and again soon if it returns that more is to be done.
        """
        self.lost = 0  # changes
        self.queued = 0  # changes; the number of the last one
        self.written = 0  # changes; each with a number up to this is on disk
        self.written_bytes = 0
        self.is_failing = False
        self.is_detached = False  # another process has the file: changes are queued, and `done` is called at once
        self.pending_bytes = 0
        self._path = path
        self._connect = connect
        self._name = name
        self._unit = unit
        self._commit_seconds = commit_seconds
        self._max_changes = max_changes
        self._chore = chore
        self._chore_at = time.monotonic() if chore is not None else math.inf
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # identity of the connected file
        self._lock = threading.Lock()  # of the queue; not held during disk access
        self._changes: deque[_Queued] = deque()
        self._wakeup = threading.Event()
        self._hurry = threading.Event()  # a caller waits for the next commit
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._log = logging.getLogger(f"carousel.{name}")
        self._logged_at = -LOG_INTERVAL_SECONDS

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the connection to the current file. Raises the errors of `connect`."""
        if self._connection is None or self._identity() != self._file:
            self._disconnect()  # before reconnecting, as SQLite caches a file's state by its name
            self._connection = self._connect(self._path)
            self._file = self._identity()
        return self._connection

    @property
    def pending(self) -> int:
        """Return the number of changes that are not written yet."""
        return len(self._changes)

    @property
    def is_running(self) -> bool:
        """Return whether changes are being written."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(
        self,
        change: Change,
        done: Callable[[], object] | None = None,
        *,
        written: Callable[[], object] | None = None,
    ) -> bool:
        """Queue a change, and return whether it fits. Returns at once, independently of the disk. done: called in any
        thread when the change is written, or was tried to be, or is lost. written: called in the writer's thread when
        it is on disk.
        """
        size = change.size
        with self._lock:
            is_lost = len(self._changes) >= self._max_changes or self.pending_bytes + size > MAX_PENDING_BYTES
            if is_lost:
                self.lost += 1
            else:
                self._changes.append(_Queued(change, None if self.is_detached else done, written))
                self.queued += 1
                self.pending_bytes += size
        if is_lost or self.is_detached:
            _call(done)
        self._wakeup.set()
        return not is_lost

    def commit_soon(self, done: Callable[[], object]) -> None:
        """Commit without delay. done: called in any thread when all changes before are written, or were tried to be."""
        self.put(_Mark(), done)
        self._hurry.set()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Commit the changes so far, and wait for that unless nothing is written at the moment. Returns whether the
        wait ended within some seconds. For the event loop.
        """
        if self.written >= self.queued or self.is_failing or self.is_detached or not self.is_running:
            return True
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.commit_soon(lambda: loop.call_soon_threadsafe(done.set))
        try:
            await asyncio.wait_for(done.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Write pending changes and stop. Blocks for at most `CLOSE_SECONDS`; further calls do nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._hurry.set()
        self._wakeup.set()
        if self._thread.ident is None:
            self._disconnect()
        else:
            self._thread.join(CLOSE_SECONDS)
        with self._lock:
            left = len(self._changes)
            self.lost += left
            self._remove(left)
        if left:
            text = "%s: %s could not be written before the end: %d %s are lost"
            self._log.error(text, self._name, self._path, left, self._unit)

    # Writer thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            until_chore = self._chore_at - time.monotonic()
            self._wakeup.wait(None if until_chore == math.inf else max(0.0, until_chore))
            self._hurry.wait(self._commit_seconds)
            self._hurry.clear()
            self._wakeup.clear()
            while not self._flush() and not self._closing.wait(RETRY_SECONDS):
                pass
            if not self._closing.is_set() and time.monotonic() >= self._chore_at:
                self._do_chore()
        self._flush()
        self._disconnect()

    def _flush(self) -> bool:
        """Write pending changes. Return False if that fails; they stay pending."""
        while self._changes:
            with self._lock:
                changes = list(islice(self._changes, MAX_COMMIT_CHANGES))
            try:
                self._commit(changes)
            except Exception as error:  # no error may affect a request or end the thread
                self._disconnect()
                self._log_failure(error)
                self._release(changes)
                return False
            with self._lock:
                self._remove(len(changes))
            self.written += len(changes)
            self.written_bytes += sum(each.change.size for each in changes)
            for each in changes:
                _call(each.written)
                _call(each.done)
        if self.is_failing:
            self.is_failing = False
            self._log.warning("%s: %s can be written again", self._name, self._path)
        return True

    def _do_chore(self) -> None:
        assert self._chore is not None
        has_more = False
        try:
            has_more = self._chore(self.connection)
        except Exception as error:  # it is tried again in an hour
            self._disconnect()
            self._log.warning("%s: %s could not be cleaned up: %s", self._name, self._path, error)
        self._chore_at = time.monotonic() + (0.0 if has_more else CHORE_SECONDS)

    def _commit(self, changes: Sequence[_Queued]) -> None:
        """Write all changes or none."""
        connection = self.connection
        with connection:
            for each in changes:
                each.change.apply(connection)

    def _release(self, changes: Sequence[_Queued]) -> None:
        """Call the functions of changes that could not be written: no answer waits for a disk that does not work."""
        with self._lock:
            for at, each in enumerate(changes[: len(self._changes)]):  # fewer if `close` has dropped them meanwhile
                self._changes[at] = each._replace(done=None)
        for each in changes:
            _call(each.done)

    def _remove(self, count: int) -> None:
        """Remove the first changes of the queue, whose lock is held; fewer if `close` has dropped them meanwhile."""
        for _ in range(min(count, len(self._changes))):
            self.pending_bytes -= self._changes.popleft().change.size

    def _identity(self) -> tuple[int, int] | None:
        """Return the identity of the file at the path. Changes written to a moved or removed file would be lost."""
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

    def _log_failure(self, error: Exception) -> None:
        self.is_failing = True
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = now
            self._log.error(
                "%s: %s cannot be written (%s): %d %s are pending, %d are lost",
                self._name,
                self._path,
                error,
                len(self._changes),
                self._unit,
                self.lost,
            )


def _call(done: Callable[[], object] | None) -> None:
    if done is not None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            done()
