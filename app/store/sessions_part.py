"""Tables of realtime sessions (`app/store/sessions.py`)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from app.store.part import Part, Record, by_statements

SCHEMA = """
CREATE TABLE session (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    key_digest TEXT NOT NULL,         -- of its tenant; empty without a key
    network TEXT NOT NULL,            -- of a tenant without a key
    fields BLOB NOT NULL,             -- JSON of app.protocols.realtime_fields.SessionFields
    changed REAL NOT NULL             -- Unix seconds
);
CREATE TABLE session_item (
    session TEXT NOT NULL,
    id TEXT NOT NULL,
    position REAL NOT NULL,
    item BLOB NOT NULL,               -- JSON, as clients see it
    PRIMARY KEY (session, id)
) WITHOUT ROWID;
CREATE TABLE session_response (
    id TEXT NOT NULL PRIMARY KEY,
    session TEXT NOT NULL,
    response BLOB NOT NULL            -- app.store.sessions.SavedResponse
);
CREATE INDEX session_response_session ON session_response (session);
"""

USAGE = """
SELECT owner, count(*),
    sum(length(fields)
        + (SELECT coalesce(sum(length(item)), 0) FROM session_item AS i WHERE i.session = s.id)
        + (SELECT coalesce(sum(length(response)), 0) FROM session_response AS r WHERE r.session = s.id)),
    min(changed), max(changed), sum(EXISTS (SELECT 1 FROM session_response AS r WHERE r.session = s.id))
FROM session AS s GROUP BY owner
"""

PRUNE = by_statements(
    "DELETE FROM session WHERE id IN "
    "(SELECT id FROM session WHERE changed < :ended OR changed < :begun ORDER BY changed LIMIT :limit)",
    "DELETE FROM session_item WHERE session NOT IN (SELECT id FROM session)",
    "DELETE FROM session_response WHERE session NOT IN (SELECT id FROM session)",
)

EXPORT = "SELECT id, owner, changed, fields FROM session ORDER BY changed"
ITEMS = "SELECT item FROM session_item WHERE session = ? ORDER BY position"


def _export(connection: sqlite3.Connection) -> Iterator[Record]:
    for session_id, owner, changed, fields in connection.execute(EXPORT):
        record: Record = {"kind": "realtime session", "id": session_id, "owner": owner, "changed": changed}
        try:
            items = [json.loads(item) for (item,) in connection.execute(ITEMS, (session_id,))]
            yield record | {"session": json.loads(fields), "items": items}
        except ValueError:
            yield record | {"error": "the row cannot be read"}


SESSIONS = Part(name="realtime sessions", schema=SCHEMA, usage=USAGE, prune=PRUNE, export=_export)
