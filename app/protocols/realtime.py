"""`/v1/realtime`: events that clients send over the WebSocket. Text only; audio is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from app.errors import ApiError
from app.http.json_body import check_structure, decode_json
from app.protocols.realtime_fields import ResponseFields, SessionChange, read_change
from app.protocols.realtime_items import NewItem
from app.protocols.schema import Strict, refusal

# Events of audio. Clearing a buffer is served, because every buffer is empty here.
AUDIO_PREFIXES = ("input_audio_buffer.", "output_audio_buffer.", "transcription_session.")
MAX_TYPE_CHARACTERS = 80  # of an unknown type in an error


class _Event(Strict):
    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(_Event):
    """session.update"""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    type: Literal["session.update"]
    session: Annotated[SessionChange, PlainValidator(read_change)]


class ItemCreate(_Event):
    """conversation.item.create"""

    type: Literal["conversation.item.create"]
    item: NewItem
    previous_item_id: str | None = None


class ItemRetrieve(_Event):
    """conversation.item.retrieve"""

    type: Literal["conversation.item.retrieve"]
    item_id: str


class ItemTruncate(_Event):
    """conversation.item.truncate. audio_end_ms: how much of the speech for the item was heard."""

    type: Literal["conversation.item.truncate"]
    item_id: str
    content_index: Literal[0]
    audio_end_ms: Annotated[int, Field(ge=0, lt=2**31)]


class ItemDelete(_Event):
    """conversation.item.delete"""

    type: Literal["conversation.item.delete"]
    item_id: str


class ResponseCreate(_Event):
    """response.create"""

    type: Literal["response.create"]
    response: ResponseFields | None = None


class ResponseCancel(_Event):
    """response.cancel"""

    type: Literal["response.cancel"]
    response_id: str | None = None


class BufferClear(_Event):
    """input_audio_buffer.clear and output_audio_buffer.clear"""

    type: Literal["input_audio_buffer.clear", "output_audio_buffer.clear"]


ClientEvent = (
    SessionUpdate
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
    | BufferClear
)

_adapter: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])


class EventRefused(Exception):
    """A client event that cannot be served, with the content of its `error` event."""

    def __init__(self, error: ApiError, event_id: str | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.event_id = event_id


def error_body(error: ApiError, event_id: str | None) -> dict[str, Any]:
    """Return the content of an `error` event. event_id: that of the refused client event."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"type": kind, "code": error.code, "message": str(error), "param": error.param, "event_id": event_id}


def parse_event(text: str) -> ClientEvent:
    """Parse one frame. Raises `EventRefused`."""
    fields: Any = None
    try:
        fields = decode_json(text)
    except ApiError as error:
        raise EventRefused(error, None) from None
    try:
        return _adapter.validate_python(fields)
    except ValidationError as error:
        raise EventRefused(_explain(error), _event_id(fields)) from None


def parse_long_event(text: str) -> ClientEvent:
    """Parse a frame of more than `MAX_INLINE_BYTES`, in a thread. Raises `EventRefused`."""
    try:
        check_structure(text.encode())
    except ApiError as error:
        raise EventRefused(error, None) from None
    return parse_event(text)


def _explain(error: ValidationError) -> ApiError:
    problem = error.errors(include_url=False, include_input=False)[0]
    if problem["type"] == "union_tag_invalid":
        return _unknown_type(str(problem["ctx"]["tag"])[:MAX_TYPE_CHARACTERS])
    if problem["type"] == "union_tag_not_found":
        return ApiError(400, "an event needs a type", param="type", code="missing")
    return refusal(error, is_tagged=True)


def _unknown_type(kind: str) -> ApiError:
    if kind.startswith(AUDIO_PREFIXES):
        message = (
            f"the event {kind!r} is not supported, because this server reads and writes text only; send text with "
            "conversation.item.create and ask for an answer with response.create"
        )
        return ApiError(400, message, param="type", code="unsupported_event")
    return ApiError(400, f"unknown event type {kind!r}", param="type", code="unknown_event")


def _event_id(fields: Any) -> str | None:
    """Return the id of an event that is otherwise wrong, to name it in the error."""
    event_id = fields.get("event_id") if isinstance(fields, dict) else None
    return event_id[:512] if isinstance(event_id, str) else None
