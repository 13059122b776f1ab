"""MemoryStore: `ConversationStore` in the memory of the API process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from app.conversations.shelf import DEFAULT_LIMITS, Limits, Shelf
from app.conversations.store import (
    CompletionWindow,
    Page,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
    Usage,
)


class _ItemIndex:
    """Items by owner and id, each with the number of records that have it."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, tuple[StoredItem, int]]] = {}

    def get(self, owner: str, item_id: str) -> StoredItem | None:
        """Return an item of an owner."""
        found = self._owners.get(owner, {}).get(item_id)
        return None if found is None else found[0]

    def add(self, owner: str, items: Iterable[StoredItem]) -> None:
        """Count items of a record."""
        own = self._owners.setdefault(owner, {})
        for item in items:
            known = own.get(item.id)
            own[item.id] = (item, 1) if known is None else (known[0], known[1] + 1)

    def remove(self, owner: str, items: Iterable[StoredItem]) -> None:
        """Stop counting items of a record."""
        own = self._owners.get(owner, {})
        for item in items:
            known, count = own.pop(item.id)
            if count > 1:
                own[item.id] = (known, count - 1)
        if not own:
            self._owners.pop(owner, None)


class _Ancestor(NamedTuple):
    """Removed response that others continue, with its size."""

    record: StoredResponse
    size: int


class MemoryStore:
    """Store whose records are lost with the process.

    A response refers to the one that it continues, which cannot be changed any more, so there are no cycles. One that
    is removed while others continue it becomes an ancestor: it cannot be read, and its items count for its tenant until
    the last response that needs them is gone.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic) -> None:
        """limits: of each kind of record."""
        self._responses = Shelf[StoredResponse](limits, self._response_removed, clock)
        self._conversations = Shelf[StoredConversation](limits, self._conversation_removed, clock)
        self._completions = Shelf[StoredCompletion](limits, clock=clock)
        self._ancestors: dict[str, _Ancestor] = {}
        self._continued: dict[str, int] = {}  # number of responses and ancestors that continue a response or ancestor
        self._items = _ItemIndex()

    def usage(self) -> Mapping[str, Usage]:
        return {
            "responses": self._responses.usage,
            "conversations": self._conversations.usage,
            "completions": self._completions.usage,
        }

    def add_response(self, record: StoredResponse, history: Sequence[StoredItem]) -> None:
        previous = record.previous_id
        if previous is not None and self._responses.peek(previous) is None and previous not in self._ancestors:
            record = msgspec.structs.replace(record, previous_id=None, inherited=tuple(history))
        if record.previous_id is not None:
            self._continued[record.previous_id] = self._continued.get(record.previous_id, 0) + 1
        self._items.add(record.owner, record.items)
        self._responses.put(record)

    def end_response(self, response_id: str, fields: bytes, output: Sequence[StoredItem]) -> None:
        record = self._responses.get(response_id)
        if record is None or record.has_ended:
            return
        self._items.add(record.owner, output)
        self._responses.put(msgspec.structs.replace(record, fields=fields, output=tuple(output)))

    async def response(self, response_id: str, owner: str) -> StoredResponse | None:
        return self._responses.get(response_id, owner)

    def has_response(self, response_id: str) -> bool:
        """Return whether it has a response, also one that has expired and is not yet removed."""
        return self._responses.peek(response_id) is not None

    async def history(self, record: StoredResponse) -> list[StoredItem]:
        chain = [record]
        while (previous := chain[-1].previous_id) is not None:
            chain.append(self._responses.peek(previous) or self._ancestors[previous].record)
        return [item for each in reversed(chain) for item in each.items]

    async def delete_response(self, response_id: str, owner: str) -> bool:
        return self._responses.get(response_id, owner) is not None and self._responses.remove(response_id)

    async def item(self, item_id: str, owner: str) -> StoredItem | None:
        return self._items.get(owner, item_id)

    def add_conversation(self, record: StoredConversation) -> None:
        self._items.add(record.owner, record.items)
        self._conversations.put(record)

    def extend_conversation(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        record = self._conversations.get(conversation_id)
        if record is not None:
            known = {item.id for item in record.items}
            added = tuple(item for item in items if item.id not in known)
            self._items.add(record.owner, added)
            self._conversations.put(msgspec.structs.replace(record, items=(*record.items, *added)))

    def remove_conversation_item(self, conversation_id: str, item_id: str) -> None:
        record = self._conversations.get(conversation_id)
        if record is not None:
            kept = tuple(item for item in record.items if item.id != item_id)
            self._items.remove(record.owner, (item for item in record.items if item.id == item_id))
            self._conversations.put(msgspec.structs.replace(record, items=kept))

    def update_conversation(self, conversation_id: str, metadata: bytes) -> None:
        record = self._conversations.get(conversation_id)
        if record is not None:
            self._conversations.put(msgspec.structs.replace(record, metadata=metadata))

    async def conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        return self._conversations.get(conversation_id, owner)

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        found = self._conversations.get(conversation_id, owner)
        return found is not None and self._conversations.remove(conversation_id)

    def add_completion(self, record: StoredCompletion) -> None:
        self._completions.put(record)

    def update_completion(self, completion_id: str, metadata: Mapping[str, str]) -> None:
        record = self._completions.get(completion_id)
        if record is not None:
            self._completions.put(msgspec.structs.replace(record, metadata=metadata))

    def end_completion(self, completion_id: str, body: bytes) -> None:
        record = self._completions.get(completion_id)
        if record is None or record.body:
            return
        if body:
            self._completions.put(msgspec.structs.replace(record, body=body))
        else:
            self._completions.remove(completion_id)

    async def completion(self, completion_id: str, owner: str) -> StoredCompletion | None:
        record = self._completions.get(completion_id, owner)
        return record if record is not None and record.body else None

    async def completions(self, owner: str, window: CompletionWindow) -> Page[StoredCompletion]:
        return window.select(record for record in self._completions if record.owner == owner and record.body)

    async def delete_completion(self, completion_id: str, owner: str) -> bool:
        return await self.completion(completion_id, owner) is not None and self._completions.remove(completion_id)

    def _conversation_removed(self, record: StoredConversation) -> None:
        self._items.remove(record.owner, record.items)

    def _response_removed(self, record: StoredResponse) -> None:
        self._items.remove(record.owner, record.items)
        if record.id in self._continued:
            ancestor = msgspec.structs.replace(record, fields=b"")
            size = ancestor.size
            self._ancestors[record.id] = _Ancestor(ancestor, size)
            self._responses.charge(ancestor.tenant, size)
        else:
            self._release(record)

    def _release(self, record: StoredResponse) -> None:
        """Drop the ancestors that only a removed response has continued. Iterative: a chain may be long."""
        while (previous := record.previous_id) is not None:
            self._continued[previous] -= 1
            if self._continued[previous]:
                return
            del self._continued[previous]
            if previous not in self._ancestors:
                return
            record, size = self._ancestors.pop(previous)
            self._responses.charge(record.tenant, -size)
