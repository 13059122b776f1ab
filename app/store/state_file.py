"""StateFile: the SQLite file of a server, its writer, and what is kept there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from app.conversations.memory_store import MemoryStore
from app.store.conversations import FileStore
from app.store.database import connect
from app.store.entries import Saved
from app.store.journal import Journal
from app.store.record_changes import FileLimits
from app.store.record_file import RecordFile
from app.store.record_queries import Unfinished
from app.store.sessions import SavedSession, SessionRecorder, SessionTable
from app.store.writer import Writer

KEEP_SECONDS = 30 * 86400.0  # for which a record is kept after its last change


class Found(NamedTuple):
    """State of an earlier process: its answers, its records without an end, and its realtime sessions."""

    answers: list[Saved]
    records: list[Unfinished]
    sessions: list[tuple[SavedSession, SessionRecorder]]


class StateFile:
    """State that survives the process. Each part has tables of its own, and all share one writer."""

    def __init__(self, path: Path, record_bytes: int = 1 << 30) -> None:
        """record_bytes: maximum size of all responses, conversations and chat completions. Raise `StoreError` if the
        file cannot be used.
        """
        self.writer = Writer(path, connect)
        self.journal = Journal(self.writer)
        self.sessions = SessionTable(self.writer)
        self.records = RecordFile(path, self.writer, FileLimits(record_bytes, KEEP_SECONDS))
        self.conversations = FileStore(self.records, MemoryStore())

    def read(self) -> Found:
        """Return the state of an earlier process, before the writer starts."""
        return Found(self.journal.read(), self.records.read_unfinished(), self.sessions.read())

    def flush(self) -> None:
        """Queue what parts hold back."""
        self.journal.flush()

    def close(self) -> None:
        """Write everything that is queued, in any thread. Blocks."""
        self.records.close()
        self.writer.close()
