"""Realtime sessions and their requests as the store keeps them: the JSON that clients see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from pydantic import BaseModel, TypeAdapter

from app.admission.tenants import Tenant
from app.generation.request import GenerationRequest, Turns
from app.protocols.common import TextRequest
from app.protocols.conversation import Conversation
from app.protocols.realtime_fields import ResponseFields, SessionFields, generation_request
from app.protocols.realtime_items import ConversationItem, NewItem, turns
from app.protocols.realtime_output import OutputStart
from app.protocols.realtime_response import RealtimeResponse

if TYPE_CHECKING:
    from app.store.sessions import SavedResponse, SessionRecorder

encode = msgspec.json.Encoder().encode
_items: TypeAdapter[list[NewItem]] = TypeAdapter(list[NewItem])


class RealtimeRequest(TextRequest):
    """Response of a session, with the conversation that it answers: all that its parsers come from."""

    items: list[NewItem]
    instructions: str | None = None
    session: SessionFields
    response: ResponseFields

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        found: Turns = turns([item.item(item.id or "") for item in self.items], self.instructions)
        return generation_request(found, self.response, self.session, None, None, resume_seconds)


def request_body(
    items: Iterable[ConversationItem], instructions: str | None, session: SessionFields, response: ResponseFields
) -> bytes:
    """Return the JSON of a `RealtimeRequest`. items: those that are part of the prompt."""
    body = {
        "items": [item.view() | {"id": item.id or None} for item in items if item.is_whole],
        "instructions": instructions,
        "session": msgspec.Raw(fields_body(session)),
        "response": msgspec.Raw(fields_body(response)),
    }
    return encode(body)


def fields_body(fields: BaseModel) -> bytes:
    """Return the JSON of the fields that a client has set, without the input of a response, which is in its prompt."""
    # Warnings: functions that tell the members of a union apart do so for JSON, not for models.
    dumped = fields.model_dump_json(exclude_unset=True, by_alias=True, exclude={"input"}, warnings=False)
    return dumped.encode()


def read_items(items: Sequence[bytes]) -> list[ConversationItem]:
    """Return items from their JSON."""
    given = _items.validate_json(b"[%s]" % b",".join(items))
    return [fields.item(fields.id or "") for fields in given]


class SessionSaver:
    """Writes a session to the store, if there is one, as it changes."""

    def __init__(self, recorder: SessionRecorder | None) -> None:
        self._recorder = recorder

    def update(self, tenant: Tenant, fields: SessionFields) -> None:
        """Write the session with its fields."""
        if self._recorder is not None:
            self._recorder.save(tenant, fields_body(fields))

    def add(self, items: Iterable[ConversationItem], conversation: Conversation) -> None:
        """Write those items that are complete and in the conversation."""
        if self._recorder is not None:
            for item in items:
                if conversation.holds(item):
                    self._recorder.put(item.id, encode(item.view()), conversation.ids)

    def delete(self, item_id: str, responses: Iterable[RealtimeResponse]) -> None:
        """Remove an item. responses: those in progress, one of which it may belong to."""
        if self._recorder is not None:
            self._recorder.drop(item_id)
            for response in responses:
                if any(item.id == item_id for item in response.output.items):
                    self.begin(response)

    def begin(self, response: RealtimeResponse) -> None:
        """Write a response that is in progress."""
        if self._recorder is not None:
            from app.store.sessions import SavedResponse  # imported only if used: SQLite

            start = response.output.start
            fields = fields_body(response.fields)
            deleted = tuple(start.deleted)
            saved = SavedResponse(response.id, fields, response.limit, start.item_prefix, start.anchor, deleted)
            self._recorder.put_response(saved)

    def end(self, response: RealtimeResponse, conversation: Conversation) -> None:
        """Write the items of a response, which has ended."""
        if self._recorder is not None:
            self.add(response.output.items, conversation)
            self._recorder.drop_response(response.id)

    async def settle(self) -> None:
        """Wait until the changes so far are written: a client is told of none that a restart would undo."""
        if self._recorder is not None:
            await self._recorder.settle()

    def close(self) -> None:
        """Remove the session, which cannot be taken up any more."""
        if self._recorder is not None:
            self._recorder.delete()


def output_start(saved: SavedResponse) -> OutputStart:
    """Return the beginning of a response's output."""
    return OutputStart(saved.item_prefix, saved.anchor, saved.deleted)
