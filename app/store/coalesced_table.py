"""CoalescedTable: current values by key, of which changed ones are written once a second.

Values age by the wall clock, the only one that survives a process. It may have been set meanwhile: no value is older
than its memory, and none is from the future.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.store.part import Part, Record, by_statements
from app.store.writer import Write, Writer

WRITE_SECONDS = 1.0  # between two writes of changed values
MAX_CHANGED = 16_384  # keys, beyond which they are written at once


Current = Callable[[str], tuple[float, tuple[float, ...]] | None]


class Aged(NamedTuple):
    """Values of a key. age: seconds since they were current."""

    key: str
    age: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Declaration of a table. columns: of its values, which are numbers of at least 0. memory_seconds: age after which
    values mean nothing. max_rows: bound of the keys in memory, which is that of the table too.
    """

    name: str
    columns: tuple[str, ...]
    memory_seconds: float
    max_rows: int

    def part(self, kind: str) -> Part:
        """Return its description as a part of the store. kind: of its records, in the plural."""
        columns = "".join(f", {column} REAL NOT NULL" for column in ("at", *self.columns))
        old = f"SELECT key FROM {self.name} WHERE at < :ended OR at < :begun ORDER BY at LIMIT :limit"
        return Part(
            name=kind,
            schema=f"CREATE TABLE {self.name} (key TEXT NOT NULL PRIMARY KEY{columns}) WITHOUT ROWID;\n",
            usage=(
                f"SELECT '', count(*), sum(length(key) + {8 * len(self.columns) + 8}), min(at), max(at), 0 "
                f"FROM {self.name} HAVING count(*)"
            ),
            prune=by_statements(f"DELETE FROM {self.name} WHERE key IN ({old})"),
            export=lambda connection: self._export(connection, kind),
        )

    def _export(self, connection: sqlite3.Connection, kind: str) -> Iterator[Record]:
        for key, at, *values in connection.execute(f"SELECT * FROM {self.name} ORDER BY at"):
            yield {"kind": kind, "key": key, "at": at, **dict(zip(self.columns, values, strict=True))}


class CoalescedTable:
    """Values of one table. All methods but `read` are for the event loop."""

    def __init__(self, table: Table, writer: Writer, clock: Callable[[], float] = time.time) -> None:
        """clock: wall clock."""
        self._table = table
        self._writer = writer
        self._clock = clock
        self._current: Current = lambda _: None
        self._changed: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        marks = ", ".join("?" * (len(table.columns) + 2))
        self._insert = f"INSERT OR REPLACE INTO {table.name} VALUES ({marks})"
        self._delete = f"DELETE FROM {table.name} WHERE key = ?"

    def follow(self, current: Current) -> None:
        """Set the function that returns the age in seconds and the values of a changed key; None: it was forgotten."""
        self._current = current

    def read(self) -> list[Aged]:
        """Return the values of an earlier process, the newest first, before the writer starts. Others are removed."""
        name, now = self._table.name, self._clock()
        found: list[Aged] = []
        for key, at, *values in self._writer.connection.execute(f"SELECT * FROM {name} ORDER BY at DESC"):
            age = max(0.0, now - at) if isinstance(at, float) else math.inf
            if age > self._table.memory_seconds or len(found) == self._table.max_rows or not _are_amounts(values):
                self._writer.put(Write(f"DELETE FROM {name} WHERE key = ? AND at = ?", (key, at)))
                continue
            if at > now:  # the clock was set back
                self._writer.put(Write(f"UPDATE {name} SET at = ? WHERE key = ? AND at = ?", (now, key, at)))
            found.append(Aged(key, age, tuple(values)))
        return found

    def changed(self, key: str) -> None:
        """Write the values of a key within a second."""
        self._changed[key] = None
        if len(self._changed) >= MAX_CHANGED:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self.flush)

    def flush(self) -> None:
        """Queue the current values of changed keys."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changed, self._changed = self._changed, {}
        now = self._clock()
        for key in changed:
            if (current := self._current(key)) is None:
                self._writer.put(Write(self._delete, (key,)))
            else:
                age, values = current
                self._writer.put(Write(self._insert, (key, now - age, *values)))


def _are_amounts(values: Sequence[object]) -> bool:
    return all(isinstance(value, float) and 0 <= value < math.inf for value in values)
