"""Output of a realtime response: the events of its items, from the records of its log. Independent of sessions.

The items of a response, and their order, follow from the records alone, so a client that comes back to a session reads
the same events again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import msgspec

from app.protocols.conversation import BEGINNING, Conversation
from app.protocols.realtime_items import ConversationItem
from app.streams.status import status_view
from app.streams.stream_log import (
    ChoiceFinished,
    Delta,
    Failure,
    Item,
    LogEntry,
    Record,
    StreamLog,
    ToolCallPiece,
    Usage,
)

MAX_OUTPUT_ITEMS = 128  # of a response, which a conversation takes beyond its own limit

encode = msgspec.json.Encoder().encode


class OutputStart(NamedTuple):
    """Beginning of an output. item_prefix: of the ids of its items. anchor: item of the conversation after which they
    are. deleted: ids of those that the client has deleted.
    """

    item_prefix: str
    anchor: str | None
    deleted: Collection[str] = ()


def last_place(conversation: Conversation | None) -> str | None:
    """Return the place after the last item of a conversation."""
    return None if conversation is None else conversation.last_id or BEGINNING


class ResponseOutput:
    """Items of one response, as of the records that were encoded. An encoder of its log, for which each record is
    encoded once.

    Items become part of the conversation when they begin, after the items that they answer.
    """

    def __init__(
        self,
        response_id: str,
        conversation: Conversation | None,
        event_id: Callable[[], str],
        on_full: Callable[[], None] = lambda: None,
        start: OutputStart | None = None,
    ) -> None:
        """conversation: the one that the items become part of; None for a response out of band. on_full: called once
        if the answer goes on after `MAX_OUTPUT_ITEMS`; the rest is dropped. start: that of the response in an earlier
        process.
        """
        self.items: list[ConversationItem] = []
        self.finish = ""
        self.usage: Usage | None = None
        self.failure: Failure | None = None
        self._response_id = response_id
        self._conversation = conversation
        self._event_id = event_id
        self._on_full = on_full
        start = start or OutputStart(f"item_{secrets.token_hex(10)}", last_place(conversation))
        self._id_prefix, self._anchor = start.item_prefix, start.anchor
        self._previous = self._anchor  # item of the conversation after which the next one begins
        self._deleted = set(start.deleted)  # ids of items that the client deleted before the output was restarted
        self._placed: str | None = None  # id before the last item in the conversation
        self._item: ConversationItem | None = None  # the last one, while it grows
        self._delta = b""  # JSON of a delta of that item between event id and text, the same for every token
        self._is_full = False
        self._messages: list[bytes] = []  # of the records that are being encoded

    @property
    def start(self) -> OutputStart:
        """Return what makes the same output from the same log in another process."""
        gone = {item.id for item in self.items if self._conversation is None or not self._conversation.holds(item)}
        return OutputStart(self._id_prefix, self._anchor, frozenset(self._deleted | gone))

    def encode(self, log: StreamLog, items: list[Item]) -> list[bytes]:
        """Return the messages of `items`; items without content have none."""
        messages: list[bytes] = []
        self._messages = messages
        for item in items:
            if isinstance(item, LogEntry):
                self._advance(item.record)
            else:
                self._emit("carousel.status", response_id=self._response_id, **status_view(item))
        return messages

    def restart(self) -> None:
        """Return to the state before the first record, for another reader of the log."""
        for item in self.items:
            if self._conversation is not None and self._conversation.holds(item):
                self._conversation.delete(item.id)
            else:
                self._deleted.add(item.id)
        self.items, self._item, self._previous, self._is_full = [], None, self._anchor, False
        self.finish, self.usage, self.failure = "", None, None

    def _advance(self, record: Record) -> None:
        match record:
            case Delta():
                self._add(record)
            case ChoiceFinished(_, reason, _):
                self._finish(reason)
            case Usage():
                self.usage = record
            case Failure():
                self.failure = record
                self._close("incomplete")

    def _add(self, delta: Delta) -> None:
        if delta.reasoning:
            # Reasoning is no item. It is located by the item that it belongs to, even before that begins.
            location = _between(self._location(self._index))
            self._messages.append(self._text_event(b"carousel.reasoning.delta", location, delta.reasoning))
        if delta.text:
            if self._item is None or self._item.type != "message":
                self._open("message")
            self._grow(b"response.output_text.delta", delta.text)
        for piece in delta.calls:
            if piece.id:
                self._open("function_call", piece)
            if piece.arguments:
                self._grow(b"response.function_call_arguments.delta", piece.arguments)

    def _finish(self, reason: str) -> None:
        self.finish = reason
        if not self.items and reason != "abort":
            self._open("message")  # clients expect at least one item
        self._close("completed" if reason in ("stop", "tool_calls") else "incomplete")

    def _open(self, kind: str, call: ToolCallPiece | None = None) -> None:
        """Begin an item. The one before it is complete."""
        self._close("completed")
        if len(self.items) == MAX_OUTPUT_ITEMS:
            if not self._is_full:
                self._is_full = True
                self._on_full()
            return
        item_id = f"{self._id_prefix}{self._index}"
        call_id, name = ("", "") if call is None else (call.id, call.name)
        self._item = item = ConversationItem(item_id, kind, status="in_progress", call_id=call_id, name=name)
        self.items.append(item)
        self._emit("response.output_item.added", **self._item_location, item=item.opened_view())
        self._place(item)
        location = self._location(self._index, item)
        self._delta = _between(location)
        if kind == "message":
            self._emit("response.content_part.added", **location, part={"type": "text", "text": ""})

    def _place(self, item: ConversationItem) -> None:
        """Make an item part of the conversation: after the one before it, or at the end if that was deleted."""
        conversation, previous = self._conversation, self._previous
        # A client may have guessed the id.
        if conversation is None or item.id in self._deleted or item.id in conversation:
            return
        if previous is not None and previous != BEGINNING and previous not in conversation:
            previous = None
        self._placed = conversation.insert(item, previous)
        self._previous = item.id
        self._emit("conversation.item.added", previous_item_id=self._placed, item=item.opened_view())

    def _grow(self, kind: bytes, text: str) -> None:
        if self._item is not None:  # else the output is full
            self._item.grow(text)
            self._messages.append(self._text_event(kind, self._delta, text))

    def _close(self, status: str) -> None:
        item = self._item
        if item is None:
            return
        item.status = status
        location, text = self._location(self._index, item), item.text
        if item.type == "message":
            self._emit("response.output_text.done", **location, text=text)
            self._emit("response.content_part.done", **location, part={"type": "text", "text": text})
        else:
            self._emit("response.function_call_arguments.done", **location, name=item.name, arguments=text)
        self._emit("response.output_item.done", **self._item_location, item=item.view())
        if self._conversation is not None and self._conversation.holds(item):  # it may have been deleted meanwhile
            self._conversation.settle(item)
            self._emit("conversation.item.done", previous_item_id=self._placed, item=item.view())
        self._item = None

    @property
    def _index(self) -> int:
        """Return the number of items before the current one, or before the next one if none is open."""
        return len(self.items) - (self._item is not None)

    @property
    def _item_location(self) -> dict[str, Any]:
        return {"response_id": self._response_id, "output_index": self._index}

    def _location(self, index: int, item: ConversationItem | None = None) -> dict[str, Any]:
        """Return the fields that locate a text in the response."""
        located = {"response_id": self._response_id, "item_id": f"{self._id_prefix}{index}", "output_index": index}
        is_call = item is not None and item.type == "function_call"
        return located | ({"call_id": item.call_id} if is_call and item is not None else {"content_index": 0})

    def _emit(self, kind: str, **content: Any) -> None:
        self._messages.append(encode({"type": kind, "event_id": self._event_id(), **content}))

    def _text_event(self, kind: bytes, location: bytes, text: str) -> bytes:
        start = b'{"type":"%s","event_id":"%s' % (kind, self._event_id().encode())
        return b"%s%s%s}" % (start, location, encode(text))


def _between(location: dict[str, Any]) -> bytes:
    """Return the JSON of a delta between its event id and its text."""
    return b'",%s,"delta":' % encode(location)[1:-1]
