"""FileStore: `ConversationStore` in a file, with the newest records in memory too.

Reads of memory need no thread, and go on while the disk is full or locked. What memory has dropped is read from the
file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from app.conversations.memory_store import MemoryStore
from app.conversations.store import (
    CompletionWindow,
    Page,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
    Usage,
    size_of,
)
from app.errors import ApiError
from app.store import record_changes, record_queries
from app.store.record_file import RecordFile


class FileStore:
    """Store whose records survive the process. The file is bounded by bytes and age, the memory as `MemoryStore`."""

    def __init__(self, file: RecordFile, memory: MemoryStore) -> None:
        self._file = file
        self._memory = memory

    def usage(self) -> Mapping[str, Usage]:
        return {f"{kind}s": Usage(*counts) for kind, counts in self._file.totals.items()}

    def add_response(self, record: StoredResponse, history: Sequence[StoredItem]) -> None:
        self._memory.add_response(record, history)
        kept = history if self._file.has_room else None  # it is needed only if the response before is gone meanwhile
        size = record.size + size_of(kept or ())
        self._put(size, partial(record_changes.add_response, record=record, history=kept, now=time.time()))

    def end_response(self, response_id: str, fields: bytes, output: Sequence[StoredItem]) -> None:
        self._memory.end_response(response_id, fields, output)
        change = partial(
            record_changes.end_response, record_id=response_id, fields=fields, output=output, now=time.time()
        )
        self._put(len(fields) + size_of(output), change)

    async def response(self, response_id: str, owner: str) -> StoredResponse | None:
        found = await self._memory.response(response_id, owner)
        if found is not None or self._is_absent(response_id):
            return found
        return await self._file.read(record_queries.response, response_id, owner, self._file.since)

    async def history(self, record: StoredResponse) -> Sequence[StoredItem] | None:
        if self._memory.has_response(record.id):
            return await self._memory.history(record)
        return await self._file.read(record_queries.history, record.id)

    async def delete_response(self, response_id: str, owner: str) -> bool:
        if await self.response(response_id, owner) is None:
            return False
        self._remove(response_id)
        await self._memory.delete_response(response_id, owner)
        await self._file.settle()
        return True

    async def item(self, item_id: str, owner: str) -> StoredItem | None:
        found = await self._memory.item(item_id, owner)
        if found is not None or not item_id.isascii():
            return found
        rows = await self._file.read(record_queries.item, item_id, owner, self._file.since)
        file = self._file
        kept = [row for record, row in rows if not (file.is_removed(record) or file.is_removed(record, row.id))]
        return kept[0] if kept else None

    def add_conversation(self, record: StoredConversation) -> None:
        self._memory.add_conversation(record)
        self._put(record.size, partial(record_changes.add_conversation, record=record, now=time.time()))

    def extend_conversation(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        self._memory.extend_conversation(conversation_id, items)
        change = partial(
            record_changes.extend_conversation, record_id=conversation_id, items=tuple(items), now=time.time()
        )
        self._put(size_of(items), change)

    def remove_conversation_item(self, conversation_id: str, item_id: str) -> None:
        change = partial(
            record_changes.remove_conversation_item, record_id=conversation_id, item_id=item_id, now=time.time()
        )
        if not self._file.remove(conversation_id, change, item_id):
            raise unavailable()
        self._memory.remove_conversation_item(conversation_id, item_id)

    def update_conversation(self, conversation_id: str, metadata: bytes) -> None:
        self._memory.update_conversation(conversation_id, metadata)
        self._set_metadata("conversation", conversation_id, metadata)

    async def conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        found = await self._memory.conversation(conversation_id, owner)
        if found is not None or self._is_absent(conversation_id):
            return found
        read = await self._file.read(record_queries.conversation, conversation_id, owner, self._file.since)
        if read is None:
            return None
        kept = tuple(item for item in read.items if not self._file.is_removed(read.id, item.id))
        return msgspec.structs.replace(read, items=kept)

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        if await self.conversation(conversation_id, owner) is None:
            return False
        self._remove(conversation_id)
        await self._memory.delete_conversation(conversation_id, owner)
        await self._file.settle()
        return True

    def add_completion(self, record: StoredCompletion) -> None:
        self._memory.add_completion(record)
        metadata = msgspec.json.encode(record.metadata)
        self._put(
            record.size, partial(record_changes.add_completion, record=record, metadata=metadata, now=time.time())
        )

    def update_completion(self, completion_id: str, metadata: Mapping[str, str]) -> None:
        self._memory.update_completion(completion_id, metadata)
        self._set_metadata("completion", completion_id, msgspec.json.encode(metadata))

    def end_completion(self, completion_id: str, body: bytes) -> None:
        self._memory.end_completion(completion_id, body)
        change = partial(record_changes.end_completion, record_id=completion_id, body=body, now=time.time())
        self._put(len(body), change)

    async def completion(self, completion_id: str, owner: str) -> StoredCompletion | None:
        found = await self._memory.completion(completion_id, owner)
        if found is not None or self._is_absent(completion_id):
            return found
        return await self._file.read(record_queries.completion, completion_id, owner, self._file.since)

    async def completions(self, owner: str, window: CompletionWindow) -> Page[StoredCompletion]:
        while True:
            page = await self._file.read(record_queries.completions, owner, window, self._file.since)
            kept = [record for record in page.records if not self._file.is_removed(record.id)]
            if kept or not page.has_more:
                return Page(kept, page.has_more)
            last = page.records[-1]
            window = replace(window, after=(last.created, last.id))

    async def delete_completion(self, completion_id: str, owner: str) -> bool:
        if await self.completion(completion_id, owner) is None:
            return False
        self._remove(completion_id)
        await self._memory.delete_completion(completion_id, owner)
        await self._file.settle()
        return True

    def _put(self, size: int, change: Callable[[sqlite3.Connection], None]) -> None:
        self._file.put(size, change)

    def _set_metadata(self, kind: str, record_id: str, metadata: bytes) -> None:
        change = partial(
            record_changes.set_metadata, kind=kind, record_id=record_id, metadata=metadata, now=time.time()
        )
        self._put(len(metadata), change)

    def _is_absent(self, record_id: str) -> bool:
        """Return whether the file has no record with an id, or one that is about to be removed. Ids are ASCII."""
        return not record_id.isascii() or self._file.is_removed(record_id)

    def _remove(self, record_id: str) -> None:
        """Remove a record from the file. Raises `ApiError` (503)."""
        if not self._file.remove(record_id, partial(record_changes.remove, record_id=record_id)):
            raise unavailable()


def unavailable() -> ApiError:
    """Return the error (503) for a removal that could be undone by a restart."""
    return ApiError(
        503,
        "the disk of the server cannot be written, and too many changes wait; retry later",
        code="store_unavailable",
        headers={"Retry-After": "5"},
    )
