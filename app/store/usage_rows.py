"""Usage rows of answers in the journal until the metering file has them, so that a killed process loses none.

An answer that has ended is restored and does not end again; its row would be lost with the process. Knows nothing
about the columns of a row. Its first value is the id of the request, which the metering file accepts once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from app.store.part import Part, Record, by_statements
from app.store.writer import Write, Writer

UsageRow = tuple[str | int | float, ...]

SCHEMA = """
CREATE TABLE usage_row (
    id TEXT NOT NULL PRIMARY KEY,
    ended REAL NOT NULL,  -- Unix seconds
    row BLOB NOT NULL     -- msgpack of the values
) WITHOUT ROWID;
"""
USAGE = "SELECT '', count(*), sum(length(row)), min(ended), max(ended), 0 FROM usage_row HAVING count(*)"
PRUNE = by_statements(
    "DELETE FROM usage_row WHERE id IN "
    "(SELECT id FROM usage_row WHERE ended < :ended OR ended < :begun ORDER BY ended LIMIT :limit)",
)
HOLD = "INSERT OR REPLACE INTO usage_row (id, ended, row) VALUES (?, ?, ?)"
SETTLE = "DELETE FROM usage_row WHERE id = ?"
READ = "SELECT id, row FROM usage_row ORDER BY ended"


def _export(connection: sqlite3.Connection) -> Iterator[Record]:
    for row_id, ended, row in connection.execute("SELECT id, ended, row FROM usage_row ORDER BY ended"):
        yield {"kind": "usage row", "id": row_id, "ended": ended, "values": msgspec.msgpack.decode(row)}


USAGE_ROWS = Part(name="usage rows", schema=SCHEMA, usage=USAGE, prune=PRUNE, export=_export)


class UsageRows:
    """Rows that the metering file may lack. Bounded by the rows that wait for that file."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def read(self) -> list[UsageRow]:
        """Return the rows that an earlier process has left, before the writer starts."""
        rows: list[UsageRow] = []
        for row_id, values in self._writer.connection.execute(READ):
            try:
                rows.append(msgspec.msgpack.decode(values, type=UsageRow))
            except msgspec.DecodeError:
                self.settle(row_id)
        return rows

    def hold(self, row_id: str, ended: float, row: UsageRow) -> None:
        """Keep a row until `settle`."""
        self._writer.put(Write(HOLD, (row_id, ended, msgspec.msgpack.encode(row))))

    def settle(self, row_id: str) -> None:
        """Remove a row that the metering file has. Called in any thread."""
        self._writer.put(Write(SETTLE, (row_id,)))
