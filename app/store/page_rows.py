"""PageRows: rows of the chat page by owner, in a file that all API processes of a machine open.

The file is the store of the first process. The others have stores of their own for what one process owns, such as an
answer; rows belong to a key, whose browsers reach any process. SQLite locks the file for each join, so that numbers
are given in the order of commits, and no process has to be asked or waited for. A join does not go through the
store's writer: it is answered after its commit, or refused.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from app.admission.thread_queue import Caller, ThreadQueue
from app.conversations.page_rows import Joined, PageRow, RowList
from app.errors import ApiError
from app.store.database import BUSY_SECONDS, StoreError, check
from app.store.page_part import TOTAL, TooManyBytes, epoch_of, join, rows_after

log = logging.getLogger("carousel.store")

Result = TypeVar("Result")

READ_THREADS = 2  # each may have one page in memory


class PageRows:
    """Access to the rows. Its methods are for the event loop, and raise `ApiError` (503) if the file cannot be used.

    bytes: of all rows, as of the last use by this process. refused: joins that would have exceeded the bytes of their
    owner.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """path: of the store of the first API process. max_bytes: of the rows of one owner."""
        self.bytes = 0
        self.refused = 0
        self._path = path
        self._max_bytes = max_bytes
        self._joins = ThreadQueue(1)  # SQLite has one writer at a time
        self._reads = ThreadQueue(READ_THREADS)

    async def join(self, rows: Sequence[PageRow], owner: str, caller: Caller) -> Joined:
        """Join rows, all or none, and return when they are on disk. Raises `ApiError` (413) for too many bytes."""

        def run(connection: sqlite3.Connection) -> Joined:
            last = join(connection, owner, rows, self._max_bytes, time.time())
            return Joined(last, epoch_of(connection, owner))

        try:
            return await self._run(self._joins, "BEGIN IMMEDIATE", run, caller)
        except TooManyBytes as error:
            self.refused += 1
            message = (
                f"the rows of this key would have {error.size:,} bytes; --page-bytes allows {self._max_bytes:,}. "
                "Delete conversations first: a join whose rows do not grow is accepted"
            )
            raise ApiError(413, message, param="rows", code="page_rows_full") from None

    async def after(self, number: int, limit: int, owner: str, caller: Caller) -> RowList:
        """Return at most `limit` rows that have changed after a number, in the order of their changes."""
        return await self._run(
            self._reads, "BEGIN", lambda connection: rows_after(connection, owner, number, limit), caller
        )

    async def _run(
        self, queue: ThreadQueue, begin: str, work: Callable[[sqlite3.Connection], Result], caller: Caller
    ) -> Result:
        """Return the result of work in a thread and in a transaction, which is undone if it fails."""

        def run() -> Result:
            with self._opened() as connection:
                connection.execute(begin)
                with connection:
                    result = work(connection)
                    self.bytes = connection.execute(TOTAL).fetchone()[0]
                return result

        try:
            return await queue.run(run, caller)
        except (sqlite3.Error, StoreError) as error:
            log.error("store: %s: rows of the chat page cannot be used (%s)", self._path, error)
            message = "the store of the server cannot be used at the moment; retry in some seconds"
            raise ApiError(503, message, code="store_unavailable", headers={"Retry-After": "5"}) from None

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction: it may be another one by now, which the first process has created. It may
        also be missing, or have an older version, while that process has not started.
        """
        uri = f"{self._path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            if not check(connection):
                raise StoreError("it is empty")
            connection.execute("PRAGMA synchronous = NORMAL")  # as the writer of the store has it
            yield connection
