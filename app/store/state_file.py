"""StateFile: the SQLite file of a server, its writer, and what is kept there."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from app.store.database import StoreError, StoreLock, connect
from app.store.journal import Journal
from app.store.sessions import SessionTable
from app.store.usage_rows import UsageRows
from app.store.writer import Writer


class StateFile:
    """State that survives the process. Each part has tables of its own, and all share one writer."""

    def __init__(self, path: Path) -> None:
        """Raise `StoreError` if the file cannot be used."""
        self.writer = Writer(path, connect)
        self.journal = Journal(self.writer)
        self.sessions = SessionTable(self.writer)
        self.usage_rows = UsageRows(self.writer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = StoreLock(path)
            try:
                _ = self.writer.connection
            except BaseException:
                self._lock.release()
                raise
        except (sqlite3.Error, OSError, StoreError) as error:
            raise StoreError(f"store: {path}: {error}") from None

    def flush(self) -> None:
        """Queue what parts hold back."""
        self.journal.flush()

    def close(self) -> None:
        """Write everything that is queued, in any thread. Blocks; further calls do nothing."""
        self.writer.close()
        self._lock.release()
