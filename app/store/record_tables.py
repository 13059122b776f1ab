"""Tables of stored responses, conversations and chat completions.

Triggers keep the sums by tenant and kind, in the same transaction as the records, also when another process deletes
some.
"""

from __future__ import annotations

RECORD_SCHEMA = """
CREATE TABLE record (
    id TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,                     -- response, conversation or completion
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    created REAL NOT NULL,                  -- Unix seconds, as below
    changed REAL NOT NULL,
    size INTEGER NOT NULL,                  -- bytes that it counts as
    is_ancestor INTEGER NOT NULL DEFAULT 0, -- it was removed, and others continue it
    previous_id TEXT,
    conversation_id TEXT,
    model TEXT NOT NULL DEFAULT '',
    metadata TEXT NOT NULL DEFAULT '{}',    -- JSON of texts by name
    body BLOB NOT NULL DEFAULT x''          -- JSON of the answer without items; empty while it is in progress
);
CREATE INDEX record_of_tenant ON record (tenant, changed) WHERE is_ancestor = 0;
CREATE INDEX record_age ON record (changed) WHERE is_ancestor = 0;
CREATE INDEX record_continued ON record (previous_id) WHERE previous_id IS NOT NULL;
CREATE INDEX record_completion ON record (owner, created, id) WHERE kind = 'completion';
CREATE INDEX record_unfinished ON record (kind) WHERE body = x'' AND kind <> 'conversation' AND is_ancestor = 0;
CREATE TABLE item (
    record TEXT NOT NULL,
    part INTEGER NOT NULL,                  -- 0: inherited, 1: input, 2: output
    position INTEGER NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,                     -- JSON
    PRIMARY KEY (record, part, position)
);
CREATE INDEX item_id ON item (id);
CREATE TABLE share (
    tenant TEXT NOT NULL PRIMARY KEY,
    records INTEGER NOT NULL,               -- without ancestors
    bytes INTEGER NOT NULL                  -- with ancestors
) WITHOUT ROWID;
CREATE INDEX share_bytes ON share (bytes) WHERE records > 0;
CREATE TABLE total (
    kind TEXT NOT NULL PRIMARY KEY,
    records INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    evicted INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO total (kind) VALUES ('response'), ('conversation'), ('completion');
CREATE TRIGGER record_added AFTER INSERT ON record BEGIN
    INSERT INTO share (tenant, records, bytes) VALUES (new.tenant, 1, new.size)
        ON CONFLICT (tenant) DO UPDATE SET records = records + 1, bytes = bytes + excluded.bytes;
    UPDATE total SET records = records + 1, bytes = bytes + new.size WHERE kind = new.kind;
END;
CREATE TRIGGER record_resized AFTER UPDATE OF size, is_ancestor ON record BEGIN
    UPDATE share SET records = records + old.is_ancestor - new.is_ancestor, bytes = bytes + new.size - old.size
        WHERE tenant = new.tenant;
    UPDATE total SET records = records + old.is_ancestor - new.is_ancestor, bytes = bytes + new.size - old.size
        WHERE kind = new.kind;
END;
CREATE TRIGGER record_removed AFTER DELETE ON record BEGIN
    DELETE FROM item WHERE record = old.id;
    UPDATE share SET records = records - 1 + old.is_ancestor, bytes = bytes - old.size WHERE tenant = old.tenant;
    DELETE FROM share WHERE tenant = old.tenant AND bytes <= 0;
    UPDATE total SET records = records - 1 + old.is_ancestor, bytes = bytes - old.size WHERE kind = old.kind;
END;
"""
