"""Tables of the chat page's rows (`app/store/page_rows.py`), and the statements that join and read them.

Triggers keep the bytes of each owner, also when another process deletes rows. The row of an owner stays when all of its
rows are gone, as its counter must not begin again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence

from app.conversations.page_rows import NumberedRow, PageRow, RowList
from app.store.part import Part, Record, by_statements

MAX_PAGE_BYTES = 1 << 20  # of the rows of one page, which has one row in any case
TOMBSTONE_SECONDS = 90 * 86_400.0  # after which a deletion is forgotten
MAX_FORGOTTEN = 1000  # deletions that one join forgets

# State `page_rows` is the epoch. Clients compare it, as another file lacks the rows that they have sent.
SCHEMA = """
CREATE TABLE page_row (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    number INTEGER NOT NULL,          -- of the owner's last change of a row when this one was changed
    revision INTEGER NOT NULL,
    writer TEXT NOT NULL,
    value TEXT,                       -- null: the row was deleted
    size INTEGER NOT NULL,            -- bytes that it counts as
    changed REAL NOT NULL,            -- Unix seconds
    PRIMARY KEY (owner, id)
);
CREATE UNIQUE INDEX page_row_number ON page_row (owner, number);
CREATE INDEX page_row_deleted ON page_row (owner, changed) WHERE value IS NULL;
CREATE TABLE page_owner (
    owner TEXT NOT NULL PRIMARY KEY,
    last INTEGER NOT NULL DEFAULT 0,  -- number of the last change
    bytes INTEGER NOT NULL DEFAULT 0  -- of its rows
) WITHOUT ROWID;
CREATE TRIGGER page_row_added AFTER INSERT ON page_row BEGIN
    UPDATE page_owner SET bytes = bytes + new.size WHERE owner = new.owner;
END;
CREATE TRIGGER page_row_resized AFTER UPDATE OF size ON page_row BEGIN
    UPDATE page_owner SET bytes = bytes + new.size - old.size WHERE owner = new.owner;
END;
CREATE TRIGGER page_row_removed AFTER DELETE ON page_row BEGIN
    UPDATE page_owner SET bytes = bytes - old.size WHERE owner = old.owner;
END;
INSERT INTO state (name, value) VALUES ('page_rows', lower(hex(randomblob(8))));
"""
USAGE = "SELECT owner, count(*), sum(size), min(changed), max(changed), 0 FROM page_row GROUP BY owner"
PRUNE = by_statements(
    "DELETE FROM page_row WHERE rowid IN "
    "(SELECT rowid FROM page_row WHERE changed < :ended OR changed < :begun ORDER BY changed LIMIT :limit)"
)
EXPORT = "SELECT owner, id, revision, writer, value, changed FROM page_row ORDER BY changed"

EPOCH = "SELECT value FROM state WHERE name = 'page_rows'"
TOTAL = "SELECT coalesce(sum(bytes), 0) FROM page_owner"
ADD_OWNER = "INSERT OR IGNORE INTO page_owner (owner) VALUES (?)"
OWNER = "SELECT last, bytes FROM page_owner WHERE owner = ?"
SET_LAST = "UPDATE page_owner SET last = ? WHERE owner = ?"
VERSION = "SELECT revision, writer FROM page_row WHERE owner = ? AND id = ?"
PUT = """
INSERT INTO page_row (owner, id, number, revision, writer, value, size, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (owner, id) DO UPDATE SET number = excluded.number, revision = excluded.revision,
    writer = excluded.writer, value = excluded.value, size = excluded.size, changed = excluded.changed
"""
FORGET = (
    "DELETE FROM page_row WHERE rowid IN "
    "(SELECT rowid FROM page_row WHERE owner = ? AND value IS NULL AND changed < ? ORDER BY changed LIMIT ?)"
)
AFTER = (
    "SELECT id, revision, writer, value, number, size FROM page_row WHERE owner = ? AND number > ? "
    "ORDER BY number LIMIT ?"
)


class TooManyBytes(Exception):
    """A join would exceed the bytes of its owner."""

    def __init__(self, size: int) -> None:
        """size: bytes that the owner's rows would have."""
        super().__init__(size)
        self.size = size


def epoch_of(connection: sqlite3.Connection, owner: str) -> str:
    """Return the epoch of an owner's rows in a file."""
    epoch = connection.execute(EPOCH).fetchone()[0]
    return hashlib.sha256(f"{epoch} {owner}".encode()).hexdigest()[:16]


def join(connection: sqlite3.Connection, owner: str, rows: Sequence[PageRow], max_bytes: int, now: float) -> int:
    """Keep the version with the higher (revision, writer) of each row, forget old deletions, and return the number of
    the owner's last change. Part of a transaction, which must be undone if this raises `TooManyBytes`: the rows have
    grown, and have more than `max_bytes`.
    """
    connection.execute(ADD_OWNER, (owner,))
    last, before = connection.execute(OWNER, (owner,)).fetchone()
    for row in rows:
        known = connection.execute(VERSION, (owner, row.id)).fetchone()
        if known is None or (row.revision, row.writer) > known:
            last += 1
            values = (row.revision, row.writer, row.value, row.size, now)
            connection.execute(PUT, (owner, row.id, last, *values))
    connection.execute(SET_LAST, (last, owner))
    connection.execute(FORGET, (owner, now - TOMBSTONE_SECONDS, MAX_FORGOTTEN))
    size = connection.execute(OWNER, (owner,)).fetchone()[1]
    if size > max(max_bytes, before):
        raise TooManyBytes(size)
    return int(last)


def rows_after(connection: sqlite3.Connection, owner: str, number: int, limit: int) -> RowList:
    """Return at most `limit` rows of an owner that have changed after a number. Part of a transaction."""
    found = connection.execute(OWNER, (owner,)).fetchone()
    last = 0 if found is None else found[0]
    rows: list[NumberedRow] = []
    size = 0
    for *values, row_size in connection.execute(AFTER, (owner, number, limit + 1)):
        size += row_size
        if rows and (len(rows) == limit or size > MAX_PAGE_BYTES):
            return RowList(rows, rows[-1].number, True, epoch_of(connection, owner))
        rows.append(NumberedRow(*values))
    return RowList(rows, last, False, epoch_of(connection, owner))


def _export(connection: sqlite3.Connection) -> Iterator[Record]:
    for owner, row_id, revision, writer, value, changed in connection.execute(EXPORT):
        row = {"revision": revision, "writer": writer, "value": value}
        yield {"kind": "page row", "id": row_id, "owner": owner, "changed": changed, **row}


PAGE_ROWS = Part(name="page rows", schema=SCHEMA, usage=USAGE, prune=PRUNE, export=_export, ages=False)
