"""Stores of the other API processes of a service, read when one starts: an answer belongs to its latest adopter.

If all processes end before the former owner of an adopted answer is started again, two stores have the answer, and no
engine knows it any more.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from app.store.database import StoreError, check, read_only
from app.store.entries import Entry, Saved

FIND = "SELECT entry FROM request WHERE id = ?"
BUSY_SECONDS = 0.5  # for which the writer of another file may lock it


def adopted_elsewhere(answers: Sequence[Saved], files: Iterable[Path]) -> set[str]:
    """Return the IDs of answers that another process has adopted after this one got them. Files that cannot be read
    count for nothing.
    """
    found: set[str] = set()
    for path in files if answers else ():
        with (
            contextlib.suppress(sqlite3.Error, StoreError, OSError),
            contextlib.closing(read_only(path, BUSY_SECONDS)) as connection,
        ):
            if check(connection):
                found |= {
                    one.entry.request.id for one in answers if _adopted_at(connection, one) > one.entry.adopted_at
                }
    return found


def _adopted_at(connection: sqlite3.Connection, saved: Saved) -> float:
    """Return when the process of another file has adopted an answer; 0 if it has not."""
    row = connection.execute(FIND, (saved.entry.request.id,)).fetchone()
    try:
        return 0.0 if row is None else msgspec.msgpack.decode(row[0], type=Entry).adopted_at
    except msgspec.DecodeError:
        return 0.0
