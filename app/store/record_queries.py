"""Reads of stored records in the file, for reading threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from app.conversations.store import (
    CompletionWindow,
    Page,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
)
from app.store.record_changes import INHERITED, INPUT, OUTPUT


class Unfinished(NamedTuple):
    """Response or chat completion without an end."""

    id: str
    owner: str


HEAD = "id, owner, tenant, created, previous_id, conversation_id, model, metadata, body"
RECORD = f"SELECT {HEAD} FROM record WHERE id = ? AND owner = ? AND kind = ? AND is_ancestor = 0 AND changed > ?"
ITEMS = "SELECT id, data FROM item WHERE record = ? AND part = ? ORDER BY position"
# The record and those that it continues, the nearest first.
CHAIN = """
WITH RECURSIVE chain (id, previous_id, depth) AS (
    SELECT id, previous_id, 0 FROM record WHERE id = ?
    UNION ALL
    SELECT record.id, record.previous_id, depth + 1 FROM chain JOIN record ON record.id = chain.previous_id
)
"""
CHAIN_ITEMS = f"""{CHAIN}
SELECT item.id, item.data FROM chain JOIN item ON item.record = chain.id
ORDER BY chain.depth DESC, item.part, item.position
"""
ITEM = """
SELECT record.id, item.id, item.data FROM item JOIN record ON record.id = item.record
WHERE item.id = ? AND record.owner = ? AND record.is_ancestor = 0 AND record.changed > ?
"""
COMPLETIONS = f"""
SELECT {HEAD} FROM record
WHERE kind = 'completion' AND owner = :owner AND body <> x'' AND changed > :since AND (:model IS NULL OR model = :model)
    AND NOT EXISTS (
        SELECT 1 FROM json_each(:metadata) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(record.metadata) AS own WHERE own.key = wanted.key AND own.value = wanted.value
        )
    )
"""
ASCENDING = " AND (created, id) > (:created, :id) ORDER BY created, id"
DESCENDING = " AND (created, id) < (:created, :id) ORDER BY created DESC, id DESC"
UNFINISHED = "SELECT id, owner FROM record WHERE body = x'' AND kind <> 'conversation' AND is_ancestor = 0"


def response(connection: sqlite3.Connection, record_id: str, owner: str, since: float) -> StoredResponse | None:
    """Return a response that was changed after a time."""
    row = _row(connection, record_id, owner, "response", since)
    if row is None:
        return None
    parts = [tuple(_items(connection.execute(ITEMS, (record_id, part)))) for part in (INHERITED, INPUT, OUTPUT)]
    return StoredResponse(
        id=row[0],
        owner=row[1],
        tenant=row[2],
        created=row[3],
        previous_id=row[4],
        conversation_id=row[5],
        fields=row[8],
        inherited=parts[INHERITED],
        input=parts[INPUT],
        output=parts[OUTPUT],
    )


def history(connection: sqlite3.Connection, record_id: str) -> list[StoredItem] | None:
    """Return the items of a response and of those that it continues, the oldest first; None if it does not exist."""
    if connection.execute("SELECT 1 FROM record WHERE id = ? AND is_ancestor = 0", (record_id,)).fetchone() is None:
        return None
    return _items(connection.execute(CHAIN_ITEMS, (record_id,)))


def item(connection: sqlite3.Connection, item_id: str, owner: str, since: float) -> list[tuple[str, StoredItem]]:
    """Return an item with the id of each record that has it."""
    found = connection.execute(ITEM, (item_id, owner, since))
    return [(record_id, StoredItem(own_id, data)) for record_id, own_id, data in found]


def conversation(connection: sqlite3.Connection, record_id: str, owner: str, since: float) -> StoredConversation | None:
    """Return a conversation that was changed after a time."""
    row = _row(connection, record_id, owner, "conversation", since)
    if row is None:
        return None
    items = tuple(_items(connection.execute(ITEMS, (record_id, INPUT))))
    return StoredConversation(
        id=row[0], owner=row[1], tenant=row[2], created=row[3], metadata=row[7].encode(), items=items
    )


def completion(connection: sqlite3.Connection, record_id: str, owner: str, since: float) -> StoredCompletion | None:
    """Return a chat completion that has ended and was changed after a time."""
    row = _row(connection, record_id, owner, "completion", since)
    if row is None or not row[8]:
        return None
    return _completion(row, tuple(_items(connection.execute(ITEMS, (record_id, INPUT)))))


def completions(
    connection: sqlite3.Connection, owner: str, window: CompletionWindow, since: float
) -> Page[StoredCompletion]:
    """Return part of the list of an owner's chat completions, without their messages."""
    end = float("-inf") if window.is_ascending else float("inf")
    created, record_id = window.after or (end, "")
    values = {
        "owner": owner,
        "since": since,
        "model": window.model,
        "metadata": msgspec.json.encode(window.metadata).decode(),
        "created": created,
        "id": record_id,
    }
    rows = connection.execute(COMPLETIONS + (ASCENDING if window.is_ascending else DESCENDING), values)
    return window.cut(map(_completion, rows))


def unfinished(connection: sqlite3.Connection) -> list[Unfinished]:
    """Return the responses and chat completions whose answers have not ended."""
    return [Unfinished(record_id, owner) for record_id, owner in connection.execute(UNFINISHED)]


def _row(connection: sqlite3.Connection, record_id: str, owner: str, kind: str, since: float) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = connection.execute(RECORD, (record_id, owner, kind, since)).fetchone()
    return row


def _completion(row: tuple[Any, ...], messages: tuple[StoredItem, ...] = ()) -> StoredCompletion:
    metadata = msgspec.json.decode(row[7], type=dict[str, str])
    return StoredCompletion(
        id=row[0],
        owner=row[1],
        tenant=row[2],
        created=row[3],
        model=row[6],
        metadata=metadata,
        body=row[8],
        messages=messages,
    )


def _items(rows: Iterable[tuple[str, bytes]]) -> list[StoredItem]:
    return [StoredItem(item_id, data) for item_id, data in rows]
