"""Tables of the journal: requests and the tokens of their answers (`app/store/journal.py`)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import msgspec

from app.store.entries import Ended, Entry
from app.store.part import Part, Record, by_statements

SCHEMA = """
CREATE TABLE request (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    created REAL NOT NULL,             -- Unix seconds
    ended REAL,                        -- Unix seconds
    entry BLOB NOT NULL,               -- app.store.entries.Entry
    change BLOB,                       -- app.store.entries.Changed, if its client has changed it
    end BLOB,                          -- app.store.entries.Ended
    starts INTEGER NOT NULL DEFAULT 1  -- processes that have taken it up and have not ended it
);
CREATE TABLE tokens (
    id TEXT NOT NULL,
    start INTEGER NOT NULL,            -- number of tokens of the request before these
    ids BLOB NOT NULL,                 -- in order of arrival, 4 bytes each, little-endian
    choices BLOB NOT NULL,             -- a byte each; empty: all of the first choice
    finish TEXT,                       -- reason, if the last one ended its choice
    PRIMARY KEY (id, start)
) WITHOUT ROWID;
"""

USAGE = """
SELECT owner, count(*),
    sum(length(entry) + coalesce(length(end), 0)
        + (SELECT coalesce(sum(length(ids) + length(choices)), 0) FROM tokens WHERE tokens.id = request.id)),
    min(created), max(created), sum(ended IS NULL)
FROM request GROUP BY owner
"""

PRUNE = by_statements(
    "DELETE FROM request WHERE id IN "
    "(SELECT id FROM request WHERE ended < :ended OR created < :begun ORDER BY created LIMIT :limit)",
    "DELETE FROM tokens WHERE id NOT IN (SELECT id FROM request)",
)

EXPORT = """
SELECT id, owner, created, ended, entry, end,
    (SELECT coalesce(sum(length(ids)), 0) / 4 FROM tokens WHERE tokens.id = request.id)
FROM request ORDER BY created
"""


def _export(connection: sqlite3.Connection) -> Iterator[Record]:
    for stream_id, owner, created, ended, entry, end, tokens in connection.execute(EXPORT):
        record: Record = {
            "kind": "answer",
            "id": stream_id,
            "owner": owner,
            "created": created,
            "ended": ended,
            "tokens": tokens,
        }
        try:
            decoded = msgspec.msgpack.decode(entry, type=Entry)
            failure = None if end is None else msgspec.msgpack.decode(end, type=Ended).failure
            body = json.loads(decoded.note.origin.body)
        except (msgspec.DecodeError, ValueError):
            yield record | {"error": "the row cannot be read"}
            continue
        yield record | {"request": body, "error": None if failure is None else failure.message}


JOURNAL = Part(name="answers", schema=SCHEMA, usage=USAGE, prune=PRUNE, export=_export)
