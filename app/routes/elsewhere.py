"""Elsewhere: what other API processes have of a client whose WebSocket this process serves.

A request over HTTP is passed on to the process that has what it names. One of a WebSocket is served here, with the
items that the other process gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from starlette.types import Scope

from app.conversations.store import StoredItem
from app.http.siblings import SiblingAbsent, Siblings, sibling_absent

CHAINS, ITEMS = "/internal/chains", "/internal/items"  # paths of questions, before an id
MAX_ID_CHARACTERS = 128  # of an id that is asked for

_items = msgspec.msgpack.Decoder(list[StoredItem])
_item = msgspec.msgpack.Decoder(StoredItem)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Questions of one client to the other processes. scope: of a request with its key.

    Each raises `ApiError` (503) if no process that can be asked has the answer, and another one cannot be asked.
    """

    siblings: Siblings
    scope: Scope

    async def chain(self, response_id: str) -> Sequence[StoredItem] | None:
        """Return the items of a response and of those before it, the oldest first. Raises `ApiError` (400) if it cannot
        be continued.
        """
        body = await self._ask("GET", CHAINS, response_id)
        return None if body is None else _items.decode(body)

    async def item(self, item_id: str) -> StoredItem | None:
        """Return an item."""
        body = await self._ask("GET", ITEMS, item_id)
        return None if body is None else _item.decode(body)

    async def has_conversation(self, conversation_id: str) -> bool:
        """Return whether another process has a conversation."""
        return await self._ask("GET", "/v1/conversations", conversation_id) is not None

    async def cancel(self, response_id: str) -> bool:
        """End a response, and return whether another process has it."""
        return await self._ask("POST", "/v1/responses", response_id, "/cancel") is not None

    async def _ask(self, method: str, path: str, given: str, rest: str = "") -> bytes | None:
        """Return the answer of the first process that has what an id names."""
        if len(given) > MAX_ID_CHARACTERS:
            return None
        is_absent = False
        for number in self.siblings.others:
            try:
                answer = await self.siblings.ask(
                    number, {**self.scope, "method": method}, f"{path}/{quote(given, safe='')}{rest}"
                )
            except SiblingAbsent:
                is_absent = True
            else:
                if answer is not None:
                    return answer
        if is_absent:
            raise sibling_absent()
        return None
