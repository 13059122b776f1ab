"""`/v1/responses` over a WebSocket: events that clients send, and frames that the server sends beside a response's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, PrivateAttr, ValidationError

from app.errors import ApiError
from app.generation.request import GenerationRequest
from app.http.json_body import MAX_INLINE_BYTES, check_structure, decode_json
from app.protocols.responses import RecordId, ResponsesRequest
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_input import MAX_ITEMS, InputItem, Message, check_newest_message
from app.protocols.responses_output import Event
from app.protocols.schema import FalseOnly, Strict, refusal, validate
from app.streams.stream_log import Item, LogEntry, StreamLog

TYPES = ("response.create", "response.cancel", "response.steer")
ENVELOPE = frozenset({"type", "stream_id", "event_id", "generate"})  # fields that the body of a request has not

EventId = Annotated[str, Field(max_length=512)]
StreamId = Annotated[str, Field(min_length=1, max_length=128)]
_encode = msgspec.json.Encoder().encode


class ResponseCreate(ResponsesRequest):
    """response.create: the fields of a body, with the lane of its events. Every response is streamed."""

    type: Literal["response.create"]
    input: str | Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_ITEMS)] = Field(default_factory=list)
    stream_id: StreamId | None = None
    event_id: EventId | None = None
    generate: bool | None = None
    background: FalseOnly | None = None
    _settings_bytes: int = PrivateAttr(default=0)  # of the fields beside the input; 0 if they are few

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        if not self.input and self.has_output and not isinstance(self.input, str):
            message = "input must be a text or have at least one item, unless generate is false"
            raise ApiError(400, message, param="input", code="invalid_value")

    @property
    def has_output(self) -> bool:
        """Return whether an answer is wanted, and not only that its prompt is prepared."""
        return self.generate is not False

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request. Without an answer, the prompt is computed, and its pages stay in the prefix cache."""
        request = super().generation_request(resume_seconds)
        if self.has_output:
            return request
        sampling = {name: value for name, value in request.sampling.items() if name not in ("logprobs", "min_tokens")}
        return replace(request, max_tokens=0, sampling=sampling, content_format=None, thinking_budget=None)

    @property
    def settings_bytes(self) -> int:
        """Return the bytes of the fields beside the input; 0 if they are few."""
        return self._settings_bytes

    def settings(self) -> ResponseCreate:
        """Return the request without its input, for a response that continues with the same settings."""
        return self.model_copy(update={"input": ""})

    def continued(self, previous_id: str, items: Sequence[InputItem]) -> ResponseCreate:
        """Return a request with these settings that continues a response."""
        return self.model_copy(update={"previous_response_id": previous_id, "input": list(items)})


class ResponseCancel(Strict):
    """response.cancel"""

    type: Literal["response.cancel"]
    response_id: RecordId
    event_id: EventId | None = None


class ResponseSteer(Strict):
    """response.steer: new input of the user into a running response."""

    type: Literal["response.steer"]
    previous_response_id: RecordId
    input: str | Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=64)]
    event_id: EventId | None = None

    @classmethod
    def api_error(cls, error: ValidationError) -> ApiError:
        """Return the first problem of a validation as an error for the client."""
        return refusal(error, has_brackets=True)

    def check(self) -> None:
        """Check the messages. Raises `ApiError`."""
        check_newest_message(self.items)
        for index, item in enumerate(self.items):
            if item.role != "user":
                message = f"input[{index}].role must be 'user' in response.steer, got {item.role!r}"
                raise ApiError(400, message, param=f"input[{index}].role", code="invalid_value")

    @property
    def items(self) -> list[Message]:
        """Return the items of the input."""
        return [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    @property
    def given(self) -> Any:
        """Return the input as JSON, for an event that returns it."""
        return (
            self.input if isinstance(self.input, str) else [item.model_dump(exclude_none=True) for item in self.input]
        )


ClientEvent = ResponseCreate | ResponseCancel | ResponseSteer


class EventRefused(Exception):
    """A client event that cannot be served. fields: as it was sent; empty if it is no object."""

    def __init__(self, error: ApiError, fields: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.fields = fields


def parse_event(text: str, check_model: Callable[[str], None]) -> ClientEvent:
    """Parse one frame. check_model: raises `ApiError` for a model that is not served. Raises `EventRefused`."""
    fields: Any = {}
    try:
        fields = decode_json(text)
        if not isinstance(fields, dict):
            raise ApiError(400, "an event must be a JSON object with a type", param="type", code="invalid_value")
        match fields.get("type"):
            case "response.create":
                if isinstance(name := fields.get("model"), str):
                    check_model(name)
                create = validate(ResponseCreate, {**fields, "stream": True})
                if len(text) > MAX_INLINE_BYTES:
                    create._settings_bytes = len(_encode(fields | {"input": None}))
                return create
            case "response.cancel":
                return validate(ResponseCancel, fields)
            case "response.steer":
                return validate(ResponseSteer, fields)
        raise _unknown_type(fields)
    except ApiError as error:
        raise EventRefused(error, fields if isinstance(fields, dict) else {}) from None


def parse_long_event(text: str, check_model: Callable[[str], None]) -> ClientEvent:
    """Parse a frame of more than `MAX_INLINE_BYTES`, in a thread. Raises `EventRefused`."""
    try:
        check_structure(text.encode())
    except ApiError as error:
        raise EventRefused(error, {}) from None
    return parse_event(text, check_model)


def body_of(text: str) -> bytes:
    """Return the body of POST /v1/responses that equals a `response.create` frame."""
    fields = decode_json(text)
    return _encode({name: value for name, value in fields.items() if name not in ENVELOPE} | {"stream": True})


def error_frame(error: ApiError, stream_id: str | None = None, event_id: str | None = None) -> bytes:
    """Return an `error` event, with the body of the HTTP error. stream_id, event_id: of the refused client event."""
    content = error.body["error"] | ({"headers": error.headers} if error.headers else {})
    names = {"stream_id": stream_id, "event_id": event_id}
    frame = {"type": "error", "status": error.status, "error": content}
    return _encode(frame | {name: value for name, value in names.items() if value is not None})


def steer_frame(kind: str, number: int, steer: dict[str, Any], stream_id: str | None, **fields: Any) -> bytes:
    """Return an event `response.steer.KIND`. number: of the steer events of the connection."""
    frame = {"type": f"response.steer.{kind}", "sequence_number": number, **fields, "steer": steer}
    return _encode(frame if stream_id is None else frame | {"stream_id": stream_id})


class FrameEncoder:
    """Encoder of one response for one WebSocket: the JSON of its server-sent events, a frame each, with the lane.

    The event `error` before `response.failed` is left out: clients take it for the end of the response, and the next
    event for the beginning of another one.
    """

    def __init__(self, events: ResponsesEncoder, stream_id: str | None) -> None:
        self._events = events
        self._lane = b"" if stream_id is None else b',"stream_id":%s}' % _encode(stream_id)

    def opening(self, log: StreamLog) -> list[bytes]:
        """Return the frames before those of the first record."""
        return self._frames(self._events.opening_events(log))

    def encode(self, log: StreamLog, items: list[Item]) -> list[bytes]:
        """Return the frames of some items; a status has none."""
        frames: list[bytes] = []
        for item in items:
            if isinstance(item, LogEntry):
                frames += self._frames(self._events.events(log, item))
        return frames

    def _frames(self, events: Sequence[Event]) -> list[bytes]:
        sent = [event.data for event in events if event.kind != "error"]
        return [data[:-1] + self._lane for data in sent] if self._lane else sent


def _unknown_type(fields: dict[str, Any]) -> ApiError:
    given = str(fields.get("type"))[:80]
    message = f"type must be one of {', '.join(TYPES)}, got {given!r}"
    return ApiError(400, message, param="type", code="unknown_event")
