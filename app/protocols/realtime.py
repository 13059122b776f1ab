"""`/v1/realtime`: events that clients send over the WebSocket. Text only; audio is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from app.errors import ApiError
from app.generation.request import ChatPrompt, GenerationRequest, Turns
from app.http.json_body import check_structure, decode_json
from app.protocols.media import MEDIA_TAG, MediaPart, is_media, joined_text, refused_media
from app.protocols.schema import MAX_CONTENT_PARTS, DeadlineMs, Lenient, Metadata, Strict, refusal
from engine.types import ServiceClass

MAX_ITEMS = 1024  # of a conversation
SAMPLING_NAMES = ("temperature", "top_p", "seed")
MaxTokens = Annotated[int, Field(ge=1, lt=2**31)] | Literal["inf"]
Modalities = Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)]


class ContentPart(Lenient):
    """A piece of an item's text."""

    type: Literal["input_text", "output_text", "text"]
    text: str


def _part_tag(value: Any) -> str:
    return MEDIA_TAG if is_media(value) else "[text]"


AnyPart = Annotated[
    Annotated[ContentPart, Tag("[text]")] | Annotated[MediaPart, Tag(MEDIA_TAG)], Discriminator(_part_tag)
]


class ItemFields(Lenient):
    """Message of the conversation."""

    id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[AnyPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
    status: Literal["completed", "incomplete", "in_progress"] | None = None

    @property
    def text(self) -> str:
        """Return the text of all parts, with a short text in place of each medium."""
        return joined_text(self.content)

    def check_newest(self, path: str) -> None:
        """Raise `ApiError` (400) for media in a message that is the newest of the user."""
        for at, part in enumerate(self.content):
            if self.role == "user" and isinstance(part, MediaPart):
                raise refused_media(f"{path}.content.{at}", part.type)


def _check_parts(items: list[ItemFields]) -> list[ItemFields]:
    if sum(len(item.content) for item in items) > MAX_CONTENT_PARTS:
        raise PydanticCustomError("too_long", "at most {most} content parts in all", {"most": MAX_CONTENT_PARTS})
    return items


few_parts = AfterValidator(_check_parts)


def check_newest_item(items: Sequence[ItemFields]) -> None:
    """Raise `ApiError` (400) for media in the newest message of the user in the input of a response."""
    newest = max((index for index, item in enumerate(items) if item.role == "user"), default=None)
    if newest is not None:
        items[newest].check_newest(f"response.input.{newest}")


class SessionFields(Strict):
    """Fields of `session.update`. `temperature`, `top_p` and `seed` are extensions of the protocol."""

    type: Literal["realtime"] | None = None
    model: str | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None


class ResponseFields(Strict):
    """Fields of `response.create`."""

    conversation: Literal["auto", "none"] = "auto"
    input: Annotated[list[ItemFields], Field(fail_fast=True, max_length=MAX_ITEMS), few_parts] | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    metadata: Metadata | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    deadline_ms: DeadlineMs | None = None  # an extension too: time until the whole answer must be complete


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


def token_limit(response: ResponseFields, session: SessionFields) -> int | None:
    """Return the maximum number of tokens of a response; None: as many as fit."""
    limit = response.max_output_tokens or session.max_output_tokens
    return None if limit == "inf" else limit


def generation_request(
    turns: Turns, response: ResponseFields, session: SessionFields, service_class: ServiceClass, stream_id: str
) -> GenerationRequest:
    """Return the request for a response. Its fields replace those of the session."""
    requested = {name: getattr(response, name) for name in SAMPLING_NAMES}
    defaults = {name: getattr(session, name) for name in SAMPLING_NAMES}
    sampling = {name: defaults[name] if value is None else value for name, value in requested.items()}
    limit = "response.max_output_tokens" if response.max_output_tokens else "session.max_output_tokens"
    prompt = "response.input" if response.input is not None else "conversation"
    return GenerationRequest(
        prompt=ChatPrompt(turns=turns),
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_tokens=token_limit(response, session),
        service_class=service_class,
        deadline_ms=response.deadline_ms,
        stream_id=stream_id,
        parameter_names={"prompt": prompt, "max_tokens": limit},
    )


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
