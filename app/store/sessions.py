"""Realtime sessions in the store, from which a session is taken up again that its server has lost with its process.

Only complete items are rows: those of a response in progress come from its log again. An item has a position between
its neighbours, so that inserting one changes no other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from app.admission.tenants import AnonymousTenant, Tenant
from app.store.writer import Write, Writer

SESSION = "INSERT OR REPLACE INTO session (id, owner, key_digest, network, fields, changed) VALUES (?, ?, ?, ?, ?, ?)"
ITEM = "INSERT OR REPLACE INTO session_item (session, id, position, item) VALUES (?, ?, ?, ?)"
MOVE = "UPDATE session_item SET position = ? WHERE session = ? AND id = ?"
DROP_ITEM = "DELETE FROM session_item WHERE session = ? AND id = ?"
RESPONSE = "INSERT OR REPLACE INTO session_response (id, session, response) VALUES (?, ?, ?)"
DROP_RESPONSE = "DELETE FROM session_response WHERE id = ?"
DELETE = (
    "DELETE FROM session WHERE id = ?",
    "DELETE FROM session_item WHERE session = ?",
    "DELETE FROM session_response WHERE session = ?",
)


class SavedResponse(msgspec.Struct, frozen=True):
    """Response in progress. fields: JSON of its `response.create`. item_prefix: beginning of the ids of its items.
    anchor: item of the conversation after which they are. deleted: ids of those that the client has deleted.
    """

    id: str
    fields: bytes
    limit: int | None
    item_prefix: str
    anchor: str | None
    deleted: tuple[str, ...] = ()


class SavedSession(msgspec.Struct, frozen=True):
    """Session as the store has it. fields: JSON of what the client has set. items: JSON of each, in order."""

    id: str
    owner: str
    key_digest: str
    network: str
    fields: bytes
    items: list[bytes]
    responses: list[SavedResponse]


class SessionRecorder:
    """Writer of one session. Its methods are for the event loop and never wait for the disk."""

    def __init__(self, writer: Writer, session_id: str, positions: dict[str, float] | None = None) -> None:
        """positions: of the items that the store has."""
        self._writer = writer
        self._id = session_id
        self._positions = positions or {}

    def save(self, tenant: Tenant, fields: bytes) -> None:
        """Write the session, without its items."""
        network = tenant.network if isinstance(tenant, AnonymousTenant) else ""
        self._write(SESSION, self._id, tenant.owner, tenant.digest, network, fields, time.time())

    def put(self, item_id: str, item: bytes, order: Sequence[str]) -> None:
        """Write a complete item. order: ids of all items of the conversation, with this one."""
        position = self._between(item_id, order)
        self._positions[item_id] = position
        self._write(ITEM, self._id, item_id, position, item)

    def drop(self, item_id: str) -> None:
        """Remove an item, if it is stored."""
        if self._positions.pop(item_id, None) is not None:
            self._write(DROP_ITEM, self._id, item_id)

    def put_response(self, response: SavedResponse) -> None:
        """Write a response in progress."""
        self._write(RESPONSE, response.id, self._id, msgspec.msgpack.encode(response))

    def drop_response(self, response_id: str) -> None:
        """Remove a response, which has ended."""
        self._write(DROP_RESPONSE, response_id)

    async def settle(self) -> None:
        """Wait until the changes so far are written, but not for a disk that does not respond."""
        await self._writer.settle()

    def delete(self) -> None:
        """Remove the session with all that belongs to it."""
        for statement in DELETE:
            self._write(statement, self._id)

    def _between(self, item_id: str, order: Sequence[str]) -> float:
        """Return the position of an item between its stored neighbours."""
        at = order.index(item_id)
        before = self._first(reversed(order[:at]))
        after = self._first(order[at + 1 :])
        if after is None:
            return 0.0 if before is None else before + 1.0
        if before is None:
            return after - 1.0
        middle = (before + after) / 2
        if before < middle < after:
            return middle
        for number, other in enumerate(each for each in order if each in self._positions):
            self._positions[other] = float(number)
            self._write(MOVE, float(number), self._id, other)
        return self._between(item_id, order)

    def _first(self, ids: Iterable[str]) -> float | None:
        """Return the position of the first item that is stored."""
        return next((self._positions[each] for each in ids if each in self._positions), None)

    def _write(self, statement: str, *values: str | bytes | float) -> None:
        self._writer.put(Write(statement, values))


class SessionTable:
    """Sessions of a store."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def recorder(self, session_id: str) -> SessionRecorder:
        """Return the recorder of a new session."""
        return SessionRecorder(self._writer, session_id)

    def read(self) -> list[tuple[SavedSession, SessionRecorder]]:
        """Return all sessions with their recorders, before the writer starts. Wrong rows are left out."""
        execute = self._writer.connection.execute
        found = []
        columns = "id, owner, key_digest, network, fields"
        for session in execute(f"SELECT {columns} FROM session ORDER BY changed").fetchall():
            session_id, owner, key_digest, network, fields = session
            query = "SELECT id, position, item FROM session_item WHERE session = ? ORDER BY position"
            items = execute(query, (session_id,)).fetchall()
            rows = execute("SELECT response FROM session_response WHERE session = ? ORDER BY rowid", (session_id,))
            responses = [msgspec.msgpack.decode(row, type=SavedResponse) for (row,) in rows]
            texts = [item for _, _, item in items]
            saved = SavedSession(session_id, owner, key_digest, network, fields, texts, responses)
            positions = {item_id: position for item_id, position, _ in items}
            found.append((saved, SessionRecorder(self._writer, session_id, positions)))
        return found
