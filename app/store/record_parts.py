"""Responses, conversations and chat completions as parts of the store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from app.store.part import Outdated, Part, Record
from app.store.record_changes import OUTPUT, remove
from app.store.record_tables import RECORD_SCHEMA

OUTDATED = """
SELECT id FROM record
WHERE kind = :kind AND is_ancestor = 0
    AND CASE WHEN body = x'' AND kind <> 'conversation' THEN created < :begun ELSE changed < :ended END
ORDER BY changed LIMIT :limit
"""
EXPORT = """
SELECT id, owner, created, changed, previous_id, conversation_id, model, metadata, body FROM record
WHERE kind = ? AND is_ancestor = 0 ORDER BY created
"""


def _usage(kind: str) -> str:
    """Return the query of the usage by owner. Bytes are those that count to the limit, with kept items of removed
    records.
    """
    return f"""
        SELECT owner, sum(is_ancestor = 0), sum(size), min(created), max(created),
            sum(is_ancestor = 0 AND body = x'' AND kind <> 'conversation')
        FROM record WHERE kind = '{kind}' GROUP BY owner
    """


def _part(kind: str, schema: str = "") -> Part:
    def prune(connection: sqlite3.Connection, outdated: Outdated) -> int:
        found = connection.execute(OUTDATED, outdated._asdict() | {"kind": kind}).fetchall()
        for (record_id,) in found:
            remove(connection, record_id)
        return len(found)

    def export(connection: sqlite3.Connection) -> Iterator[Record]:
        for row in connection.execute(EXPORT, (kind,)):
            yield _record(connection, kind, row)

    return Part(name=f"{kind}s", schema=schema, usage=_usage(kind), prune=prune, export=export)


def _record(connection: sqlite3.Connection, kind: str, row: tuple[str, ...]) -> Record:
    """Return a record as JSON, without fields that its kind does not have."""
    record_id, owner, created, changed, previous_id, conversation_id, model, metadata, body = row
    fields = {
        "previous_response_id": previous_id,
        "conversation": conversation_id,
        "model": model,
        "metadata": json.loads(metadata),
        "body": json.loads(body) if body else None,
    }
    items = connection.execute("SELECT part, data FROM item WHERE record = ? ORDER BY part, position", (record_id,))
    parts: dict[str, list[object]] = {}
    for part, data in items:
        parts.setdefault("output" if part == OUTPUT else "items", []).append(json.loads(data))
    head: Record = {"kind": kind, "id": record_id, "owner": owner, "created": created, "changed": changed}
    return head | {name: value for name, value in fields.items() if value} | parts


RECORD_PARTS = (_part("response", RECORD_SCHEMA), _part("conversation"), _part("completion"))
