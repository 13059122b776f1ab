"""ConnectionMemory: responses of one connection that are not stored, so that it can continue them."""

from __future__ import annotations

import secrets
from collections import OrderedDict

from app.conversations.memory_store import MemoryStore

MAX_LANES = 16  # of one connection whose newest response is kept


class ConnectionMemory:
    """Newest response of each lane of a connection. The bytes count to the share of its tenant in a store that all
    connections have in common, and that drops responses of the largest share first.
    """

    def __init__(self, store: MemoryStore) -> None:
        """store: in memory, never on a disk."""
        self.store = store
        self.owner = secrets.token_hex(16)  # of the responses: no client has this owner
        self._newest: OrderedDict[str | None, str] = OrderedDict()  # ids by lane, the newest last

    async def keep(self, lane: str | None, response_id: str) -> None:
        """Keep a response instead of the one before it in its lane."""
        replaced = self._newest.pop(lane, None)
        self._newest[lane] = response_id
        if replaced is None and len(self._newest) > MAX_LANES:
            _, replaced = self._newest.popitem(last=False)
        if replaced is not None:
            await self.drop(replaced)

    async def drop(self, response_id: str) -> None:
        """Forget a response. Those that continue it keep its items."""
        await self.store.delete_response(response_id, self.owner)

    async def close(self) -> None:
        """Forget all responses."""
        while self._newest:
            await self.drop(self._newest.popitem()[1])
