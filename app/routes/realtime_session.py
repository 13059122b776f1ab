"""Realtime session: a conversation over one WebSocket that can be interrupted at any token.

Owns the conversation's items and its responses in progress. Sends through two functions, independently of sockets.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from app.admission.kept_sessions import KEEP_SECONDS
from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.prepared import new_stream_id
from app.http.json_body import MAX_INLINE_BYTES
from app.protocols.conversation import Conversation
from app.protocols.realtime import (
    BufferClear,
    ClientEvent,
    EventRefused,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    error_body,
    parse_event,
    parse_long_event,
)
from app.protocols.realtime_fields import (
    ResponseFields,
    SessionChange,
    SessionFields,
    generation_request,
    token_limit,
)
from app.protocols.realtime_items import (
    MessageFields,
    NewItem,
    check_newest_message,
)
from app.protocols.realtime_output import MAX_OUTPUT_ITEMS, OutputStart, ResponseOutput, encode
from app.protocols.realtime_response import RealtimeResponse
from app.protocols.realtime_saved import RealtimeRequest, SessionSaver, output_start
from app.routes import log_ignored_tools
from app.routes.frame_pace import FramePace
from app.routes.realtime_prompt import response_prompt
from app.routes.socket_loop import Send, Write, cancel_all
from app.service import Service
from app.store.entries import Origin
from app.streams.tail import stream_chunks
from app.streams.timeline import IntakeTimeline

if TYPE_CHECKING:
    from app.store.sessions import SavedResponse, SessionRecorder

MAX_RESPONSES = 8  # in progress at once, out-of-band ones included
ITEM_BYTES = 512  # of an item without its text


@dataclass
class Session:
    """Conversation of one client. `send` waits until a message can be sent; `write` writes messages at once or not at
    all (`app.streams.tail`).
    """

    service: Service
    tenant: Tenant
    send: Send
    write: Write
    request_id: str = ""  # of the handshake, for log lines
    id: str = field(default_factory=lambda: new_id("sess"))
    fields: SessionFields = field(default_factory=SessionFields)
    items: Conversation = field(default_factory=Conversation)
    recorder: SessionRecorder | None = None  # of the store, if there is one
    _saver: SessionSaver = field(init=False)
    _responses: dict[str, RealtimeResponse] = field(default_factory=dict)
    _writing: str | None = None  # the response that writes to the conversation
    _event_prefix: str = field(default_factory=lambda: f"{new_id('event')}_")
    _event_numbers: count[int] = field(default_factory=count)
    _pace: FramePace = field(default_factory=FramePace)
    client_stalled: asyncio.Event = field(default_factory=asyncio.Event)  # set when the client accepts no more data
    is_announced: bool = False  # its client knows its id, and may come back
    displaced: asyncio.Event = field(default_factory=asyncio.Event)  # set when its client has another connection
    _released: asyncio.Event = field(default_factory=asyncio.Event)  # set when the connection is no longer used

    def __post_init__(self) -> None:
        self._saver = SessionSaver(self.recorder)

    @property
    def tenant_id(self) -> str:
        """Return the tenant that its memory counts for."""
        return self.tenant.id

    @property
    def owner(self) -> str:
        """Return the owner, which alone may take the session up."""
        return self.tenant.owner

    @property
    def size(self) -> int:
        """Return the bytes of the conversation and of the fields."""
        items = sum(sys.getsizeof(item.text) + ITEM_BYTES for item in self.items)
        return items + len(encode(self._view()))

    async def open(self) -> None:
        """Send `session.created`. In a session that is taken up, the items of the conversation follow, and all events
        of the responses that were in progress.
        """
        for response in self._responses.values():
            response.output.restart()
        self._saver.update(self.tenant, self.fields)
        await self._saver.settle()
        await self._emit("session.created", session=self._view())
        self.is_announced = True
        previous = None
        for item in list(self.items):
            await self._emit("conversation.item.added", previous_item_id=previous, item=item.view())
            await self._emit("conversation.item.done", previous_item_id=previous, item=item.view())
            previous = item.id
            await asyncio.sleep(0)
        for response in list(self._responses.values()):
            await self._start(response)

    async def displace(self) -> None:
        """End the connection, because the client has another one. Return once the session is released."""
        self.displaced.set()
        await self._released.wait()

    async def ended(self) -> str:
        """Return when the client accepts no more data, or has another connection."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.client_stalled, self.displaced)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        return "The session was taken up by another connection." if self.displaced.is_set() else ""

    def release(self, *, is_lost: bool) -> None:
        """Keep the session for a client that has only lost its connection, which may come back; else end it."""
        is_lost |= self.displaced.is_set()
        is_lost |= self.service.draining and self.service.state_file is not None  # taken up after the restart
        self.service.sessions.release(self, keeps=is_lost and self.is_announced)

    async def detach(self) -> None:
        """Stop sending, because the connection has ended. Responses go on without a reader for a while."""
        tasks = [response.task for response in self._responses.values() if response.task is not None]
        try:
            await cancel_all(tasks)
        finally:
            self._released.set()

    def attach(self, tenant: Tenant, send: Send, write: Write, request_id: str) -> None:
        """Continue over another connection."""
        self.tenant, self.send, self.write, self.request_id = tenant, send, write, request_id
        self.is_announced = True  # the client has named it, also if it was restored
        self.client_stalled, self.displaced, self._released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._pace.mark_active()

    def end(self) -> None:
        """End all responses. The session has no connection any more."""
        for response in self._responses.values():
            if response.generation is not None:
                response.generation.cancel()
        self._responses.clear()
        self._saver.close()
        # Tracebacks of cancelled tasks refer to this session in cycles until the garbage collector runs; items may take
        # megabytes.
        self.items = Conversation()

    async def handle_frame(self, text: str) -> None:
        """Handle one frame from the client. A refused frame gets an `error` event, and the session continues."""
        await self._pace.wait_turn(len(text), self.service.pacer)
        try:
            if len(text) <= MAX_INLINE_BYTES:
                event = parse_event(text)
            else:
                event = await self.service.prompts.body_queue.run(
                    lambda: parse_long_event(text),
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
        return 0.0 if self._responses else self._pace.idle_seconds

    async def _handle(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate(session=change):
                await self._update(change)
            case ItemCreate(item=fields, previous_item_id=previous):
                await self._create_item(fields, previous)
            case ItemRetrieve(item_id=item_id):
                await self._emit("conversation.item.retrieved", item=self.items.get(item_id, "retrieve").view())
            case ItemTruncate():
                await self._truncate(event)
            case ItemDelete(item_id=item_id):
                self.items.delete(item_id)
                self._saver.delete(item_id, self._responses.values())
                await self._saver.settle()
                await self._emit("conversation.item.deleted", item_id=item_id)
            case ResponseCreate(response=requested):
                await self._respond(requested or ResponseFields())
            case ResponseCancel(response_id=response_id):
                self._cancel(response_id)
            case BufferClear(type=kind):
                await self._emit(f"{kind}ed")

    async def _update(self, change: SessionChange) -> None:
        """Apply the valid fields of an update. Raises `ApiError` for the others."""
        values = dict(change.values)  # null keeps the default
        error = change.error
        try:
            self.service.check_model(values.pop("model", None))
        except ApiError as unknown:
            error = ApiError(unknown.status, str(unknown), param="session.model", code=unknown.code)
        self.fields = self.fields.model_copy(update=values)
        if "tools" in values and self.fields.ignored_tools:
            log_ignored_tools(self.request_id, self.fields.ignored_tools)
        if values or error is None:
            self._saver.update(self.tenant, self.fields)
            await self._saver.settle()
            await self._emit("session.updated", session=self._view())
        if error is not None:
            raise error

    async def _create_item(self, fields: NewItem, previous: str | None) -> None:
        if isinstance(fields, MessageFields):
            fields.check_newest("item")
        item = fields.item(fields.id or new_id("item"))
        self.items.create(item, previous)
        self._saver.add((item,), self.items)
        await self._saver.settle()
        before = self.items.before(item.id)  # by now: an answer may have put an item between them
        await self._emit("conversation.item.added", previous_item_id=before, item=item.view())
        await self._emit("conversation.item.done", previous_item_id=before, item=item.view())

    async def _truncate(self, event: ItemTruncate) -> None:
        """Confirm how much of an answer was heard. Its text stays, because only the client knows how long its speech
        for a text is.
        """
        item = self.items.get(event.item_id, "truncate")
        if (item.type, item.role) != ("message", "assistant"):
            message = f"item_id: only messages of the assistant can be truncated, and {item.id!r} is none"
            raise ApiError(400, message, param="item_id", code="invalid_value")
        await self._emit(
            "conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=event.audio_end_ms
        )

    async def _respond(self, requested: ResponseFields) -> None:
        check_newest_message(requested.input or ())
        in_conversation = requested.is_in_conversation
        self._check_room(in_conversation)
        stream_id = new_stream_id()  # its timeline is found by the response's id
        response = self._new_response(f"resp_{stream_id}", requested)
        self._responses[response.id] = response
        if in_conversation:
            self._writing = response.id
        try:
            tier, is_stored = self.tenant.highest_class, self.recorder is not None
            caller = Caller(self.tenant.id, tier)
            found, body = await response_prompt(
                self.service, caller, self.items, self.fields, requested, is_stored=is_stored
            )
            wanted = generation_request(found, requested, self.fields, tier, stream_id, KEEP_SECONDS)
            if body:
                wanted = replace(wanted, origin=Origin(RealtimeRequest.__name__, body, KEEP_SECONDS))
            intake = IntakeTimeline(time.monotonic(), self.request_id)
            response.generation = await self.service.generate(wanted, self.tenant, intake)
        except BaseException:  # including the cancellation of a client that has left
            self._remove(response)
            raise
        self._saver.begin(response)
        await self._saver.settle()
        await self._start(response)  # before any later event of the client is answered

    async def _start(self, response: RealtimeResponse) -> None:
        """Send the events of a response, from its first one on."""
        await self._emit("response.created", response=response.created_view())
        response.task = asyncio.create_task(self._stream_response(response))
        response.task.add_done_callback(self._on_response_done)

    def _check_room(self, in_conversation: bool) -> None:
        """Raise `ApiError` (400) unless another response may begin."""
        if in_conversation and self._writing is not None:
            raise ApiError(
                400,
                f"response {self._writing} is writing to the conversation; cancel it or wait for response.done",
                code="conversation_already_has_active_response",
            )
        if in_conversation:
            self.items.check_room()
        if len(self._responses) >= MAX_RESPONSES:
            raise ApiError(
                400, f"at most {MAX_RESPONSES} responses may be in progress at once", code="too_many_responses"
            )

    def restore(self, saved: SavedResponse, generation: Generation) -> None:
        """Continue a response of an earlier process. Its client comes back to the session."""
        response = self._new_response(saved.id, ResponseFields.model_validate_json(saved.fields), output_start(saved))
        response.limit, response.generation = saved.limit, generation
        self._responses[response.id] = response
        if response.fields.is_in_conversation:
            self._writing = response.id

    def _new_response(
        self, response_id: str, requested: ResponseFields, start: OutputStart | None = None
    ) -> RealtimeResponse:
        conversation = self.items if requested.is_in_conversation else None

        def cut() -> None:
            """Fail a response with too many items, after the record that is being encoded."""
            assert response.generation is not None
            message = f"The answer was ended, because it has more than {MAX_OUTPUT_ITEMS} items."
            asyncio.get_running_loop().call_soon(response.generation.fail, message, "too_many_items")

        output = ResponseOutput(response_id, conversation, self._event_id, cut, start)
        response = RealtimeResponse(response_id, requested, token_limit(requested, self.fields), output)
        return response

    def _on_response_done(self, task: asyncio.Task[None]) -> None:
        """End the session, not only the response, if its client accepts no more data."""
        if not task.cancelled() and task.exception() is not None:
            self.client_stalled.set()

    def _cancel(self, response_id: str | None) -> None:
        """Interrupt a response: the engine frees slot and pages before its next step, and `response.done` follows."""
        response = self._responses.get(response_id or self._writing or "")
        if response is None or response.generation is None or response.generation.log.is_closed:
            # Clients know this error by the beginning of its text, and ignore it.
            message = "Cancellation failed: no response is in progress"
            raise ApiError(400, message, param="response_id", code="response_cancel_not_active")
        response.cancelled = True
        response.generation.cancel()

    async def _stream_response(self, response: RealtimeResponse) -> None:
        """Send the events of a response during generation."""
        generation = response.generation
        assert generation is not None
        try:
            async with aclosing(stream_chunks(generation.log, 0, response.output, self)) as reading:
                async for messages in reading:
                    for message in messages:
                        await self.send(message)
            self._stop_writing(response)  # the client may ask for the next response once it has this event
            await self._emit("response.done", response=response.done_view())
            self._remove(response)  # not if the connection was lost before
        finally:
            generation.on_reader_left()

    def _remove(self, response: RealtimeResponse) -> None:
        self._stop_writing(response)
        self._saver.end(response, self.items)
        self._responses.pop(response.id, None)
        self._pace.mark_active()

    def _stop_writing(self, response: RealtimeResponse) -> None:
        if self._writing == response.id:
            self._writing = None

    def _view(self) -> dict[str, Any]:
        names = {"id": self.id, "object": "realtime.session", "type": "realtime"}
        return names | {"model": self.service.settings.model_name, **self.fields.view()}

    async def _refuse(self, error: ApiError, event_id: str | None) -> None:
        await self._emit("error", error=error_body(error, event_id))

    async def _emit(self, kind: str, **content: Any) -> None:
        message = encode({"type": kind, "event_id": self._event_id(), **content})
        self._pace.count_sent(len(message))
        if not self.write([message]):
            await self.send(message)

    def _event_id(self) -> str:
        return f"{self._event_prefix}{next(self._event_numbers)}"


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"
