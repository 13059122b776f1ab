"""Changes of stored records in the file, for the writer thread. Each leaves the file as `MemoryStore` would be."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from app.conversations.store import (
    ITEM_BYTES,
    Owned,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
    size_of,
)

KINDS = ("response", "conversation", "completion")
INHERITED, INPUT, OUTPUT = range(3)  # parts of a record's items
MAX_RECORD_BYTES = 64 << 20  # of one record, as in memory: a read loads it whole
MAX_EXPIRED = 4  # expired records that one change removes at most
MAX_EVICTED = 256  # records that one change evicts at most

INSERT = (
    "INSERT OR IGNORE INTO record (kind, id, owner, tenant, created, changed, size, previous_id, conversation_id, "
    "model, metadata, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_ITEM = "INSERT OR REPLACE INTO item (record, part, position, id, data) VALUES (?, ?, ?, ?, ?)"
END = (
    "UPDATE record SET body = ?, size = size + ?, changed = ? "
    "WHERE id = ? AND kind = ? AND body = x'' AND is_ancestor = 0"
)
RESIZE = "UPDATE record SET size = size + ?, changed = ? WHERE id = ?"
SET_METADATA = (
    "UPDATE record SET size = size + ? - length(CAST(metadata AS BLOB)), metadata = ?, changed = ? "
    "WHERE id = ? AND kind = ?"
)
IS_CONTINUED = "SELECT 1 FROM record WHERE previous_id = ? LIMIT 1"
MAKE_ANCESTOR = (
    "UPDATE record SET is_ancestor = 1, size = size - length(body), body = x'' WHERE id = ? AND is_ancestor = 0"
)
# An ancestor that no record continues any more, with the one that it continues.
UNUSED_ANCESTOR = (
    "SELECT previous_id FROM record AS own WHERE id = ? AND is_ancestor = 1 "
    "AND NOT EXISTS (SELECT 1 FROM record WHERE previous_id = own.id)"
)
EXPIRED = "SELECT id FROM record WHERE is_ancestor = 0 AND changed <= ? ORDER BY changed LIMIT ?"
OLDEST_OF_LARGEST = (
    "SELECT id, kind FROM record WHERE is_ancestor = 0 AND tenant = "
    "(SELECT tenant FROM share WHERE records > 0 ORDER BY bytes DESC LIMIT 1) ORDER BY changed LIMIT 1"
)


class FileLimits(NamedTuple):
    """Bounds of the file. bytes: of all records. seconds: for which one is kept after its last change."""

    bytes: int
    seconds: float


Totals = dict[str, tuple[int, int, int]]  # by kind: records, bytes, evicted ones


def add_response(
    connection: sqlite3.Connection, record: StoredResponse, history: Sequence[StoredItem] | None, now: float
) -> None:
    """Add a response. It inherits `history` if the one that it continues is gone, and is dropped without one."""
    if record.previous_id is not None and _find(connection, record.previous_id) is None:
        if history is None:
            return
        record = msgspec.structs.replace(record, previous_id=None, inherited=tuple(history))
    if _add(connection, "response", record, now, record.fields, record.previous_id, record.conversation_id):
        _add_items(connection, record.id, INHERITED, record.inherited)
        _add_items(connection, record.id, INPUT, record.input)
        _add_items(connection, record.id, OUTPUT, record.output)


def end_response(
    connection: sqlite3.Connection, record_id: str, fields: bytes, output: Sequence[StoredItem], now: float
) -> None:
    """Add the answer of a response that has none."""
    size = len(fields) + size_of(output)
    if connection.execute(END, (fields, size, now, record_id, "response")).rowcount:
        _add_items(connection, record_id, OUTPUT, output)


def add_conversation(connection: sqlite3.Connection, record: StoredConversation, now: float) -> None:
    """Add a conversation."""
    if _add(connection, "conversation", record, now, metadata=record.metadata.decode()):
        _add_items(connection, record.id, INPUT, record.items)


def extend_conversation(
    connection: sqlite3.Connection, record_id: str, items: Sequence[StoredItem], now: float
) -> None:
    """Append those items to a conversation that it does not have."""
    if _find(connection, record_id) is None:
        return
    has_item = "SELECT 1 FROM item WHERE id = ? AND record = ?"
    added = [item for item in items if connection.execute(has_item, (item.id, record_id)).fetchone() is None]
    last = connection.execute("SELECT max(position) FROM item WHERE record = ? AND part = ?", (record_id, INPUT))
    position = last.fetchone()[0]
    _add_items(connection, record_id, INPUT, added, 0 if position is None else position + 1)
    connection.execute(RESIZE, (size_of(added), now, record_id))
    if connection.execute("SELECT size FROM record WHERE id = ?", (record_id,)).fetchone()[0] > MAX_RECORD_BYTES:
        _evict(connection, record_id, "conversation")


def remove_conversation_item(connection: sqlite3.Connection, record_id: str, item_id: str, now: float) -> None:
    """Remove an item of a conversation."""
    found = connection.execute("SELECT length(data) FROM item WHERE id = ? AND record = ?", (item_id, record_id))
    if (row := found.fetchone()) is not None:
        connection.execute("DELETE FROM item WHERE id = ? AND record = ?", (item_id, record_id))
        connection.execute(RESIZE, (-ITEM_BYTES - row[0], now, record_id))


def set_metadata(connection: sqlite3.Connection, kind: str, record_id: str, metadata: bytes, now: float) -> None:
    """Replace the metadata of a conversation or chat completion."""
    connection.execute(SET_METADATA, (len(metadata), metadata.decode(), now, record_id, kind))


def add_completion(connection: sqlite3.Connection, record: StoredCompletion, metadata: bytes, now: float) -> None:
    """Add a chat completion."""
    if _add(connection, "completion", record, now, record.body, model=record.model, metadata=metadata.decode()):
        _add_items(connection, record.id, INPUT, record.messages)


def end_completion(connection: sqlite3.Connection, record_id: str, body: bytes, now: float) -> None:
    """Add the answer of a chat completion that has none; remove the record if `body` is empty."""
    if body:
        connection.execute(END, (body, len(body), now, record_id, "completion"))
    else:
        connection.execute("DELETE FROM record WHERE id = ? AND kind = 'completion' AND body = x''", (record_id,))


def remove(connection: sqlite3.Connection, record_id: str) -> None:
    """Remove a record. A response that others continue becomes an ancestor, and ancestors that no other one needs are
    dropped. Iterative: a chain may be long.
    """
    if connection.execute(IS_CONTINUED, (record_id,)).fetchone() is not None:
        connection.execute(MAKE_ANCESTOR, (record_id,))
        return
    row = connection.execute("SELECT previous_id FROM record WHERE id = ? AND is_ancestor = 0", (record_id,)).fetchone()
    while row is not None:
        connection.execute("DELETE FROM record WHERE id = ?", (record_id,))
        record_id = row[0]
        row = connection.execute(UNUSED_ANCESTOR, (record_id,)).fetchone()


def remove_expired(connection: sqlite3.Connection, before: float, number: int) -> int:
    """Remove some of the records that were last changed before a time, the oldest first. Return how many."""
    found = connection.execute(EXPIRED, (before, number)).fetchall()
    for (record_id,) in found:
        remove(connection, record_id)
    return len(found)


def keep_within(connection: sqlite3.Connection, limits: FileLimits, now: float) -> Totals:
    """Remove expired records and evict what is too much, a bounded number of each. Return the sums."""
    remove_expired(connection, now - limits.seconds, MAX_EXPIRED)
    for _ in range(MAX_EVICTED):
        if sum(size for _, size, _ in totals(connection).values()) <= limits.bytes:
            break
        oldest = connection.execute(OLDEST_OF_LARGEST).fetchone()
        if oldest is None:
            break
        _evict(connection, *oldest)
    return totals(connection)


def totals(connection: sqlite3.Connection) -> Totals:
    """Return the sums by kind."""
    rows = connection.execute("SELECT kind, records, bytes, evicted FROM total")
    return {kind: (records, size, evicted) for kind, records, size, evicted in rows}


def _evict(connection: sqlite3.Connection, record_id: str, kind: str) -> None:
    remove(connection, record_id)
    connection.execute("UPDATE total SET evicted = evicted + 1 WHERE kind = ?", (kind,))


def _find(connection: sqlite3.Connection, record_id: str) -> tuple[int] | None:
    """Return a row if a record exists, also as an ancestor."""
    row: tuple[int] | None = connection.execute("SELECT 1 FROM record WHERE id = ?", (record_id,)).fetchone()
    return row


def _add(
    connection: sqlite3.Connection,
    kind: str,
    record: Owned,
    now: float,
    body: bytes = b"",
    previous_id: str | None = None,
    conversation_id: str | None = None,
    model: str = "",
    metadata: str = "{}",
) -> bool:
    """Insert the row of a record. Return False if its id exists."""
    head = (kind, record.id, record.owner, record.tenant, record.created, now, record.size)
    return bool(connection.execute(INSERT, (*head, previous_id, conversation_id, model, metadata, body)).rowcount)


def _add_items(
    connection: sqlite3.Connection, record_id: str, part: int, items: Iterable[StoredItem], first: int = 0
) -> None:
    rows = [(record_id, part, position, item.id, item.data) for position, item in enumerate(items, first)]
    connection.executemany(INSERT_ITEM, rows)
