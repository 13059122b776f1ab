"""Realtime session: a conversation over one WebSocket that can be interrupted at any token.

Owns the conversation's items and its responses in progress. Sends through two functions, independently of sockets.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from app.admission.cell_rate import CellRate
from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.http.json_body import MAX_INLINE_BYTES
from app.protocols.conversation import Conversation
from app.protocols.realtime import (
    ClientEvent,
    EventRefused,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    parse_event,
    parse_long_event,
)
from app.protocols.realtime_events import ConversationItem, RealtimeResponse, ResponseEncoder, encode, error_body
from app.protocols.realtime_fields import ResponseFields, SessionFields, generation_request, token_limit
from app.protocols.realtime_items import ItemFields, check_newest_item
from app.service import Service, new_stream_id
from app.streams.tail import stream_chunks
from app.streams.timeline import IntakeTimeline

MAX_RESPONSES = 8  # in progress at once, out-of-band ones included
MAX_EVENTS_PER_SECOND = 100  # of one socket, after a burst of `MAX_BURST`
MAX_BURST = 100
BYTES_PER_EVENT = 16 << 10  # received or sent bytes that count as one further event


@dataclass
class Session:
    """Conversation of one client. `send` waits until a message can be sent; `write` writes messages at once or not at
    all (`app.streams.tail`).
    """

    service: Service
    tenant: Tenant
    send: Callable[[bytes], Awaitable[None]]
    write: Callable[[list[bytes]], bool]
    request_id: str = ""  # of the handshake, for log lines
    id: str = field(default_factory=lambda: _new_id("sess"))
    _fields: SessionFields = field(default_factory=SessionFields)
    _items: Conversation = field(default_factory=Conversation)
    _responses: dict[str, RealtimeResponse] = field(default_factory=dict)
    _writing: str | None = None  # the response that writes to the conversation
    _event_prefix: str = field(default_factory=lambda: f"{_new_id('event')}_")
    _event_numbers: count[int] = field(default_factory=count)
    _rate: CellRate = field(default_factory=lambda: CellRate(MAX_EVENTS_PER_SECOND, MAX_BURST - 1))
    # time of the last frame, or of the end of the last response
    _active_at: float = field(default_factory=time.monotonic)
    client_stalled: asyncio.Event = field(default_factory=asyncio.Event)  # set when the client accepts no more data

    async def open(self) -> None:
        """Send `session.created`."""
        await self._emit("session.created", session=self._view())

    async def handle_frame(self, text: str) -> None:
        """Handle one frame from the client. A refused frame gets an `error` event, and the session continues."""
        self._active_at = time.monotonic()
        if wait := self._rate.wait(self._active_at):
            await asyncio.sleep(wait)
        await self.service.pacer.wait_turn()
        self._rate.spend(time.monotonic(), 1 + len(text) / BYTES_PER_EVENT)
        try:
            if len(text) <= MAX_INLINE_BYTES:
                event = parse_event(text, self.service.check_model)
            else:
                event = await self.service.prompts.body_queue.run(
                    lambda: parse_long_event(text, self.service.check_model),
                    Caller(self.tenant.id, self.tenant.highest_class),
                    size=len(text),
                )
        except EventRefused as refused:
            await self._refuse(refused.error, refused.event_id)
            return
        try:
            await self._handle(event)
        except ApiError as error:
            await self._refuse(error, event.event_id)

    @property
    def idle_seconds(self) -> float:
        """Return the time since the last frame of the client or the end of the last response; 0 during a response."""
        return 0.0 if self._responses else time.monotonic() - self._active_at

    async def close(self) -> None:
        """End all responses, because the client has left."""
        responses = list(self._responses.values())
        for response in responses:
            if response.generation is not None:
                response.generation.cancel()
            if response.task is not None:
                response.task.cancel()
        await asyncio.gather(*(r.task for r in responses if r.task is not None), return_exceptions=True)
        # Tracebacks of cancelled tasks refer to this session in cycles until the garbage collector runs; items may take
        # megabytes.
        self._items = Conversation()

    async def _handle(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate(session=fields):
                self.service.check_model(fields.model)
                changed = fields.model_dump(exclude_unset=True)  # null keeps the default
                self._fields = self._fields.model_copy(update=changed)
                await self._emit("session.updated", session=self._view())
            case ItemCreate(item=fields, previous_item_id=previous):
                await self._create_item(fields, previous)
            case ItemRetrieve(item_id=item_id):
                await self._emit("conversation.item.retrieved", item=self._items.get(item_id).view())
            case ItemDelete(item_id=item_id):
                self._items.delete(item_id)
                await self._emit("conversation.item.deleted", item_id=item_id)
            case ResponseCreate(response=requested):
                await self._respond(requested)
            case ResponseCancel(response_id=response_id):
                self._cancel(response_id)

    async def _create_item(self, fields: ItemFields, previous: str | None) -> None:
        fields.check_newest("item")
        item = ConversationItem(fields.id or _new_id("item"), fields.role, fields.text, fields.status or "completed")
        before = self._items.insert(item, previous)
        await self._emit("conversation.item.added", previous_item_id=before, item=item.view())
        await self._emit("conversation.item.done", previous_item_id=before, item=item.view())

    async def _respond(self, requested: ResponseFields) -> None:
        check_newest_item(requested.input or ())
        in_conversation = requested.conversation == "auto"
        if in_conversation and self._writing is not None:
            raise ApiError(
                400,
                f"response {self._writing} is writing to the conversation; cancel it or wait for response.done",
                code="conversation_already_has_active_response",
            )
        if in_conversation:
            self._items.check_room()
        if len(self._responses) >= MAX_RESPONSES:
            raise ApiError(
                400, f"at most {MAX_RESPONSES} responses may be in progress at once", code="too_many_responses"
            )
        stream_id = new_stream_id()  # its timeline is found by the response's id
        response = RealtimeResponse(
            f"resp_{stream_id}",
            ConversationItem(_new_id("item"), "assistant", "", "in_progress"),
            requested,
            token_limit(requested, self._fields),
        )
        wanted = generation_request(
            self._turns(requested), requested, self._fields, self.tenant.highest_class, stream_id
        )
        if in_conversation:
            self._writing = response.id
        self._responses[response.id] = response
        try:
            intake = IntakeTimeline(time.monotonic(), self.request_id)
            response.generation = await self.service.generate(wanted, self.tenant, intake)
        except ApiError:
            self._remove(response)
            raise
        previous = self._items.last_id
        if in_conversation:
            self._items.insert(response.item)
        await self._begin(response, previous)  # before any later event of the client is answered
        response.task = asyncio.create_task(self._stream_response(response, previous))
        response.task.add_done_callback(self._on_response_done)

    def _on_response_done(self, task: asyncio.Task[None]) -> None:
        """End the session, not only the response, if its client accepts no more data."""
        if not task.cancelled() and task.exception() is not None:
            self.client_stalled.set()

    def _turns(self, requested: ResponseFields) -> list[dict[str, str]]:
        items = (
            self._items if requested.input is None else [ConversationItem("", i.role, i.text) for i in requested.input]
        )
        turns = [{"role": item.role, "content": item.text} for item in items if item.text]
        instructions = self._fields.instructions if requested.instructions is None else requested.instructions
        if instructions:
            turns.insert(0, {"role": "system", "content": instructions})
        if not turns:
            raise ApiError(400, "there is no message to answer: create an item first", code="empty_conversation")
        return turns

    def _cancel(self, response_id: str | None) -> None:
        """Interrupt a response: the engine frees slot and pages before its next step, and `response.done` follows."""
        response = self._responses.get(response_id or self._writing or "")
        if response is None or response.generation is None or response.generation.log.is_closed:
            raise ApiError(400, "no response is in progress", param="response_id", code="response_cancel_not_active")
        response.cancelled = True
        response.generation.cancel()

    async def _begin(self, response: RealtimeResponse, previous: str | None) -> None:
        """Send the events that begin a response, in the protocol's order."""
        opened = {**response.item.view(), "content": []}
        await self._emit("response.created", response=response.view("in_progress", []))
        await self._emit("response.output_item.added", response_id=response.id, output_index=0, item=opened)
        if response.fields.conversation == "auto":
            await self._emit("conversation.item.added", previous_item_id=previous, item=opened)
        await self._emit("response.content_part.added", **response.location, part={"type": "text", "text": ""})

    async def _stream_response(self, response: RealtimeResponse, previous: str | None) -> None:
        """Send the text of a response during generation, and the events that end it."""
        item, generation = response.item, response.generation
        assert generation is not None
        at = response.location
        try:
            encoder = ResponseEncoder(response, self._event_id)
            async with aclosing(stream_chunks(generation.log, 0, encoder, self)) as reading:
                async for messages in reading:
                    for message in messages:
                        await self.send(message)
            status = response.status
            item.status = "completed" if status == "completed" else "incomplete"
            await self._emit("response.output_text.done", **at, text=item.text)
            await self._emit("response.content_part.done", **at, part={"type": "text", "text": item.text})
            await self._emit("response.output_item.done", response_id=response.id, output_index=0, item=item.view())
            if item.id in self._items:  # it may have been deleted meanwhile
                await self._emit("conversation.item.done", previous_item_id=previous, item=item.view())
            self._remove(response)
            await self._emit("response.done", response=response.view(status, [item.view()]))
        finally:
            self._items.settle(item)
            self._remove(response)
            generation.on_reader_left()

    def _remove(self, response: RealtimeResponse) -> None:
        self._responses.pop(response.id, None)
        self._active_at = time.monotonic()
        if self._writing == response.id:
            self._writing = None

    def _view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.session",
            "type": "realtime",
            "model": self.service.settings.model_name,
            "instructions": self._fields.instructions or "",
            "output_modalities": ["text"],
            "max_output_tokens": self._fields.max_output_tokens or "inf",
            "tools": [],
            "tool_choice": self._fields.tool_choice or "auto",
            "temperature": self._fields.temperature,
            "top_p": self._fields.top_p,
            "seed": self._fields.seed,
        }

    async def _refuse(self, error: ApiError, event_id: str | None) -> None:
        await self._emit("error", error=error_body(error, event_id))

    async def _emit(self, kind: str, **content: Any) -> None:
        message = encode({"type": kind, "event_id": self._event_id(), **content})
        self._rate.spend(time.monotonic(), len(message) / BYTES_PER_EVENT)
        if not self.write([message]):
            await self.send(message)

    def _event_id(self) -> str:
        return f"{self._event_prefix}{next(self._event_numbers)}"


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"
