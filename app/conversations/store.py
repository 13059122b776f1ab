"""ConversationStore: interface of stores of responses, conversations and chat completions, and their records.

Items and answers are the JSON that clients see. A store knows nothing about protocols beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec

RECORD_BYTES = 1024  # counted for each record beside its contents
ITEM_BYTES = 512  # counted for each item beside its JSON
MAX_PAGE_BYTES = 16 << 20  # of chat completions in one page, which has fewer entries then


class StoredItem(msgspec.Struct, frozen=True):
    """Item of a conversation. data: its JSON, which has the id too."""

    id: str
    data: bytes


def size_of(items: Sequence[StoredItem]) -> int:
    """Return the bytes that items count as."""
    return ITEM_BYTES * len(items) + sum([len(item.data) for item in items])


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a store. owner: may read it. tenant: it counts to the share of this one; clients without keys are
    tenants by network and share one owner. created: Unix time.
    """

    id: str
    owner: str
    tenant: str
    created: float

    @property
    def size(self) -> int:
        """Return the bytes that the record counts as."""
        raise NotImplementedError


class StoredResponse(Owned, frozen=True, kw_only=True):
    """Response.

    previous_id: the response that it continues. conversation_id: the conversation that it belongs to. inherited: items
    before its input that no other record has. fields: JSON of the response without its output; empty while it is in
    progress. depth: number of items of the chain up to its input, and chain_bytes their size.
    """

    previous_id: str | None = None
    conversation_id: str | None = None
    inherited: tuple[StoredItem, ...] = ()
    input: tuple[StoredItem, ...] = ()
    fields: bytes = b""
    output: tuple[StoredItem, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Return whether its answer is stored."""
        return bool(self.fields)

    @property
    def items(self) -> tuple[StoredItem, ...]:
        """Return the items that it adds to its chain."""
        return (*self.inherited, *self.input, *self.output)

    @property
    def size(self) -> int:
        contents = size_of(self.inherited) + size_of(self.input) + size_of(self.output)
        return RECORD_BYTES + len(self.fields) + contents


class StoredConversation(Owned, frozen=True, kw_only=True):
    """Conversation. items: in order. metadata: JSON."""

    metadata: bytes = b"{}"
    items: tuple[StoredItem, ...] = ()

    @property
    def size(self) -> int:
        return RECORD_BYTES + len(self.metadata) + size_of(self.items)


class StoredCompletion(Owned, frozen=True, kw_only=True):
    """Chat completion. body: its JSON without metadata; empty while it is in progress. messages: of the request."""

    model: str
    metadata: Mapping[str, str] = {}
    body: bytes = b""
    messages: tuple[StoredItem, ...] = ()

    @property
    def size(self) -> int:
        texts = sum(len(name) + len(value) for name, value in self.metadata.items())
        return RECORD_BYTES + 4 * texts + len(self.body) + size_of(self.messages)


class Identified(Protocol):
    """Record with an id."""

    @property
    def id(self) -> str:
        """Return the id."""
        ...


Record = TypeVar("Record", bound=Identified)


@dataclass(frozen=True, slots=True)
class Page(Generic[Record]):
    """Part of a list. has_more: whether more follow."""

    records: Sequence[Record]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Part of a list that a client asks for. after: the id of the entry before it; None: it begins with the first."""

    limit: int
    is_ascending: bool = True
    after: str | None = None

    def select(self, records: Sequence[Record]) -> Page[Record] | None:
        """Return the part of a list with the oldest first; None if no entry has the id `after`."""
        listed = records if self.is_ascending else records[::-1]
        start = 0
        if self.after is not None:
            found = next((index for index, record in enumerate(listed) if record.id == self.after), None)
            if found is None:
                return None
            start = found + 1
        return Page(listed[start : start + self.limit], start + self.limit < len(listed))


# Place of a chat completion in a list: the time of its creation, and its id.
Position = tuple[float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionWindow:
    """Part of the list of an owner's chat completions of a model, if one is given, with all of some metadata.

    The list is in the order of positions, or in the reverse order. after: position of the entry before the part; None:
    it begins with the first entry.
    """

    limit: int
    is_ascending: bool = True
    after: Position | None = None
    model: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def includes(self, record: StoredCompletion) -> bool:
        """Return whether a record is in the list."""
        return self.model in (None, record.model) and self.metadata.items() <= record.metadata.items()

    def select(self, records: Iterable[StoredCompletion]) -> Page[StoredCompletion]:
        """Return the part of a list with some records, in any order."""
        listed = sorted(filter(self.includes, records), key=_position, reverse=not self.is_ascending)
        return self.cut(record for record in listed if self.after is None or self._precedes(self.after, record))

    def cut(self, records: Iterable[StoredCompletion]) -> Page[StoredCompletion]:
        """Return the first records of the rest of a list, as many as a page has."""
        found: list[StoredCompletion] = []
        size = 0
        for record in records:
            if len(found) == self.limit or size > MAX_PAGE_BYTES:
                return Page(found, has_more=True)
            found.append(record)
            size += len(record.body)
        return Page(found, has_more=False)

    def merge(self, pages: Sequence[Page[StoredCompletion]]) -> Page[StoredCompletion]:
        """Return the part of a list whose entries are in several stores, from the same part of the list of each."""
        records = {record.id: record for page in pages for record in page.records}
        listed = sorted(records.values(), key=_position, reverse=not self.is_ascending)
        # A page with more after it says nothing of the entries after its last one.
        ends = [_position(page.records[-1]) for page in pages if page.has_more]
        if not ends:
            return self.cut(listed)
        end = min(ends) if self.is_ascending else max(ends)
        page = self.cut(record for record in listed if not self._precedes(end, record))
        return Page(page.records, has_more=True)

    def _precedes(self, position: Position, record: StoredCompletion) -> bool:
        """Return whether a position is before a record in the order of the list."""
        return position < _position(record) if self.is_ascending else position > _position(record)


def _position(record: StoredCompletion) -> Position:
    return record.created, record.id


@dataclass(frozen=True, slots=True)
class Usage:
    """Content of a store by kind: number of records, their bytes, and records that were evicted early."""

    records: int
    bytes: int
    evicted: int


class ConversationStore(Protocol):
    """Store of one server. Records of another owner are absent.

    Writes return at once; a read sees all writes before it. A store is bounded: it may drop any record at any time, and
    a write to a dropped record does nothing.
    """

    def usage(self) -> Mapping[str, Usage]:
        """Return the content by kind: responses, conversations, completions."""
        ...

    def add_response(self, record: StoredResponse, history: Sequence[StoredItem]) -> None:
        """Add a response that begins. history: the items of its chain, kept with it if the one that it continues is
        gone.
        """
        ...

    def end_response(self, response_id: str, fields: bytes, output: Sequence[StoredItem]) -> None:
        """Add the answer of a response that has none yet."""
        ...

    async def response(self, response_id: str, owner: str) -> StoredResponse | None:
        """Return a response."""
        ...

    async def history(self, record: StoredResponse) -> Sequence[StoredItem] | None:
        """Return the items of a response and of those that it continues, the oldest first; None if it was deleted
        after it was read.
        """
        ...

    async def delete_response(self, response_id: str, owner: str) -> bool:
        """Delete a response and return whether it existed. Those that continue it keep its items."""
        ...

    async def item(self, item_id: str, owner: str) -> StoredItem | None:
        """Return an item of a response or conversation."""
        ...

    def add_conversation(self, record: StoredConversation) -> None:
        """Add a conversation."""
        ...

    def extend_conversation(self, conversation_id: str, items: Sequence[StoredItem]) -> None:
        """Append those items to a conversation that it does not have."""
        ...

    def remove_conversation_item(self, conversation_id: str, item_id: str) -> None:
        """Remove an item of a conversation."""
        ...

    def update_conversation(self, conversation_id: str, metadata: bytes) -> None:
        """Replace the metadata of a conversation."""
        ...

    async def conversation(self, conversation_id: str, owner: str) -> StoredConversation | None:
        """Return a conversation."""
        ...

    async def delete_conversation(self, conversation_id: str, owner: str) -> bool:
        """Delete a conversation and return whether it existed. Its responses stay."""
        ...

    def add_completion(self, record: StoredCompletion) -> None:
        """Add a chat completion that begins."""
        ...

    def update_completion(self, completion_id: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a chat completion."""
        ...

    def end_completion(self, completion_id: str, body: bytes) -> None:
        """Add the answer of a chat completion that has none yet; drop the record if `body` is empty."""
        ...

    async def completion(self, completion_id: str, owner: str) -> StoredCompletion | None:
        """Return a chat completion that has ended."""
        ...

    async def completions(self, owner: str, window: CompletionWindow) -> Page[StoredCompletion]:
        """Return part of the list of an owner's chat completions that have ended. Their messages may be left out. A
        page with more entries after it is not empty.
        """
        ...

    async def delete_completion(self, completion_id: str, owner: str) -> bool:
        """Delete a chat completion that has ended and return whether it existed."""
        ...
