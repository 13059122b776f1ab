"""RecordFile: stored records in the file of a server: changes through its writer, reads in threads of their own."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from app.errors import ApiError
from app.store.database import BUSY_SECONDS
from app.store.record_changes import KINDS, OLDEST_OF_LARGEST, FileLimits, Totals, keep_within, totals
from app.store.record_queries import Unfinished, unfinished
from app.store.writer import CHANGE_BYTES, MAX_PENDING_BYTES, Writer

log = logging.getLogger("carousel.store")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Name = tuple[str, str]  # a record with an item of it, or with no item

READ_THREADS = 2  # each may hold the largest record in memory
READ_SECONDS = 5.0  # of one read
COMMIT_WAIT_SECONDS = BUSY_SECONDS + 1.0  # for which a read waits for the changes before it
# Errors that are not the disk's.
WRONG_CHANGE = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, ArithmeticError, ValueError)


class _Change(NamedTuple):
    """Change of records, after which the file is kept within its limits."""

    file: RecordFile
    make: Callable[[sqlite3.Connection], None]
    size: int

    def apply(self, connection: sqlite3.Connection) -> None:
        if not connection.in_transaction:
            connection.execute("BEGIN")
        connection.execute("SAVEPOINT change")
        try:
            self.make(connection)
        except WRONG_CHANGE:  # it would fail again each time, and hold up all changes after it
            log.exception("store: a change of stored records is dropped")
            connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")
        self.file.totals = keep_within(connection, self.file.limits, time.time())


class RecordFile:
    """Access to the tables of records. All methods but `close` are for the event loop."""

    def __init__(self, path: Path, writer: Writer, limits: FileLimits) -> None:
        self.limits = limits
        self.totals: Totals = dict.fromkeys(KINDS, (0, 0, 0))
        self._path = path
        self._writer = writer
        self._removed: OrderedDict[Name, int] = OrderedDict()  # whose removal is not on disk, with its number
        self._threads = ThreadPoolExecutor(READ_THREADS, "store-read")

    def read_unfinished(self) -> list[Unfinished]:
        """Return the records of an earlier process whose answers have not ended, before the writer starts."""
        self.totals = totals(self._writer.connection)
        self.put(0, self._catch_up)
        return unfinished(self._writer.connection)

    @property
    def has_room(self) -> bool:
        """Return whether large changes may be queued; False while the disk does not keep up."""
        return self._writer.pending_bytes < MAX_PENDING_BYTES // 4

    @property
    def since(self) -> float:
        """Return the time of the last change of records that have expired by now."""
        return time.time() - self.limits.seconds

    def put(self, size: int, make: Callable[[sqlite3.Connection], None]) -> bool:
        """Queue a change of `size` bytes, and return whether there was room for it."""
        return self._writer.put(_Change(self, make, size + CHANGE_BYTES))

    def remove(self, record_id: str, make: Callable[[sqlite3.Connection], None], item_id: str = "") -> bool:
        """Queue the removal of a record or of an item of it, which is absent from now on. Return False if there is no
        room for it.
        """
        if not self.put(0, make):
            return False
        self._forget_written()
        self._removed[record_id, item_id] = self._writer.queued
        return True

    def is_removed(self, record_id: str, item_id: str = "") -> bool:
        """Return whether a record, or an item of it, is on disk only because its removal is not yet."""
        self._forget_written()
        return (record_id, item_id) in self._removed

    async def settle(self) -> None:
        """Wait for the changes so far to be written, unless nothing is written at the moment."""
        if not await self._writer.settle(COMMIT_WAIT_SECONDS):
            log.warning("store: %s does not respond: a read does not see the last changes", self._path)

    async def read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, Parameters], Result],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Result:
        """Return the result of a query in a thread, which sees the changes so far. Raises `ApiError` (503)."""
        await self.settle()

        def run() -> Result:
            with closing(self._open()) as connection:
                return query(connection, *arguments, **options)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except sqlite3.Error as error:
            log.error("store: %s cannot be read (%s)", self._path, error)
            raise ApiError(
                503,
                "stored records cannot be read at the moment; retry in some seconds",
                code="store_unavailable",
                headers={"Retry-After": "5"},
            ) from None

    def close(self) -> None:
        """Stop reading, in any thread."""
        self._threads.shutdown(cancel_futures=True)

    def _forget_written(self) -> None:
        """Forget the removals that are on disk. The queue of changes bounds the others."""
        while self._removed and next(iter(self._removed.values())) <= self._writer.written:
            self._removed.popitem(last=False)

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """Evict what is too much by a lower limit than before, a part with each change."""
        is_over = sum(size for _, size, _ in self.totals.values()) > self.limits.bytes
        if is_over and connection.execute(OLDEST_OF_LARGEST).fetchone() is not None:
            self.put(0, self._catch_up)

    def _open(self) -> sqlite3.Connection:
        """Return a connection for one read, whose statements take a bounded time. The file may be another one by now:
        the writer replaces one that was moved away.
        """
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)
        end = time.monotonic() + READ_SECONDS
        connection.set_progress_handler(lambda: int(time.monotonic() > end), 10_000)
        return connection
