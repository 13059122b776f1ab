"""`/v1/realtime`: events that clients send over the WebSocket. Text only; audio is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from app.errors import ApiError
from app.http.json_body import check_structure, decode_json
from app.protocols.realtime_fields import ResponseFields, SessionFields
from app.protocols.realtime_items import ItemFields
from app.protocols.schema import Strict, refusal


class _Event(Strict):
    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(_Event):
    """session.update"""

    type: Literal["session.update"]
    session: SessionFields


class ItemCreate(_Event):
    """conversation.item.create"""

    type: Literal["conversation.item.create"]
    item: ItemFields
    previous_item_id: str | None = None


class ItemRetrieve(_Event):
    """conversation.item.retrieve"""

    type: Literal["conversation.item.retrieve"]
    item_id: str


class ItemDelete(_Event):
    """conversation.item.delete"""

    type: Literal["conversation.item.delete"]
    item_id: str


class ResponseCreate(_Event):
    """response.create"""

    type: Literal["response.create"]
    response: ResponseFields = ResponseFields()


class ResponseCancel(_Event):
    """response.cancel"""

    type: Literal["response.cancel"]
    response_id: str | None = None


ClientEvent = SessionUpdate | ItemCreate | ItemRetrieve | ItemDelete | ResponseCreate | ResponseCancel

_adapter: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])


class EventRefused(Exception):
    """A client event that cannot be served, with the content of its `error` event."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.event_id = event_id


def parse_event(text: str, check_model: Callable[[str], None] = lambda _: None) -> ClientEvent:
    """Parse one frame. Raises `EventRefused`. check_model: raises `ApiError` for the name of another model."""
    fields: Any = None
    try:
        fields = decode_json(text)
        if isinstance(name := _model(fields), str):
            check_model(name)
    except ApiError as error:
        raise EventRefused(error, _event_id(fields)) from None
    try:
        return _adapter.validate_python(fields)
    except ValidationError as error:
        raise EventRefused(_explain(error), _event_id(fields)) from None


def parse_long_event(text: str, check_model: Callable[[str], None] = lambda _: None) -> ClientEvent:
    """Parse a frame of more than `MAX_INLINE_BYTES`, in a thread. Raises `EventRefused`."""
    try:
        check_structure(text.encode())
    except ApiError as error:
        raise EventRefused(error, None) from None
    return parse_event(text, check_model)


def _model(fields: Any) -> Any:
    """Return the name of the model that an event selects, if any."""
    session = fields.get("session") if isinstance(fields, dict) else None
    return session.get("model") if isinstance(session, dict) else None


def _explain(error: ValidationError) -> ApiError:
    problem = error.errors(include_url=False, include_input=False)[0]
    if problem["type"] == "union_tag_invalid":
        tag = str(problem["ctx"]["tag"])[:80]
        return ApiError(400, f"unknown event type {tag!r}", param="type", code="unknown_event")
    if problem["type"] == "union_tag_not_found":
        return ApiError(400, "an event needs a type", param="type", code="missing")
    return refusal(error, is_tagged=True)


def _event_id(fields: Any) -> str | None:
    """Return the id of an event that is otherwise wrong, to name it in the error."""
    event_id = fields.get("event_id") if isinstance(fields, dict) else None
    return event_id[:512] if isinstance(event_id, str) else None
