"""Messages of a conversation in OpenAI's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, InstanceOf, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from app.errors import ApiError
from app.generation.request import Turns
from app.protocols.media import (
    MEDIA_TAG,
    TEXT_ONLY,
    MediaPart,
    is_media,
    joined_text,
    part_tag,
    placeholder,
    refused_media,
)
from app.protocols.schema import MAX_CONTENT_PARTS, Lenient
from app.protocols.tools import template_arguments
from app.protocols.typed_objects import supported_types

MAX_MESSAGES = 4096  # of one conversation
MAX_CALLS = 1024  # of one message
OPTIONAL_FIELDS = ("name", "reasoning_content", "tool_call_id")  # of a message, for the chat template
# Fields in which other servers' clients send media beside the content, and the kind of these.
MEDIA_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "images": "image",
        "audio": "audio",
        "videos": "video",
        "files": "file",
        "attachments": "file",
        "experimental_attachments": "file",
    }
)
# Fields by which other servers' clients ask for a continuation of the last message.
CONTINUATION_FIELDS = ("prefix", "partial")
EFFECT_FIELDS = frozenset({*MEDIA_FIELDS, *CONTINUATION_FIELDS, "function_call"})
READ_FIELDS = EFFECT_FIELDS | {"reasoning", "refusal", "extras"}


class TextPart(Lenient):
    """Part of a message's content."""

    type: Literal["text"]
    text: str


class RefusalPart(Lenient):
    """Refusal in an earlier answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """Return the refusal's text."""
        return self.refusal


ContentPart = Annotated[
    Annotated[TextPart, Tag("[text]")]
    | Annotated[RefusalPart, Tag("[refusal]")]
    | Annotated[MediaPart, Tag(MEDIA_TAG)],
    Discriminator(part_tag),
    supported_types("text", "refusal", advice=TEXT_ONLY, accepts=is_media),
]


class CalledFunction(Lenient):
    """Function of a tool call. arguments: the text of a JSON object."""

    name: str
    arguments: str = ""


class CalledTool(Lenient):
    """Tool call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


@dataclass(frozen=True, slots=True)
class Extras:
    """Fields of other servers in a message that have an effect.

    replacements: texts that replace media beside the content. media: field and kind of the first of these.
    continuation: field that asks for a continuation.
    """

    replacements: Sequence[str]
    media: tuple[str, str] | None
    has_function_call: bool
    continuation: str | None


def _extras(fields: Mapping[str, Any]) -> Extras:
    media = [(field, kind) for field, kind in MEDIA_FIELDS.items() if fields.get(field)]
    replacements: list[str] = []
    for field, kind in media:
        value = fields[field]
        values = value[: MAX_CONTENT_PARTS + 1] if isinstance(value, list) else [value]  # more are refused
        replacements += [placeholder(kind, each) for each in values]
    continuation = next((field for field in CONTINUATION_FIELDS if fields.get(field)), None)
    return Extras(replacements, media[0] if media else None, bool(fields.get("function_call")), continuation)


class Message(Lenient):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)] | None = None
    # Passed to the template, which may ignore them (as in vLLM).
    name: str | None = None
    reasoning_content: str | None = None  # of an earlier answer; clients send it back with the rest
    tool_calls: Annotated[list[CalledTool], Field(fail_fast=True, max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    extras: SkipJsonSchema[InstanceOf[Extras] | None] = None  # made during validation

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, fields: Any) -> Any:
        """Read the fields of other servers: `reasoning` is the reasoning, `refusal` the text of an answer without
        another, and those with an effect become `extras`. Validation is in a thread if there are many.
        """
        if not isinstance(fields, dict) or fields.keys().isdisjoint(READ_FIELDS):
            return fields
        read = fields | {"extras": None if fields.keys().isdisjoint(EFFECT_FIELDS) else _extras(fields)}
        if isinstance(fields.get("reasoning"), str) and fields.get("reasoning_content") is None:
            read["reasoning_content"] = fields["reasoning"]
        if isinstance(fields.get("refusal"), str) and fields.get("content") is None:
            read["content"] = fields["refusal"]
        return read

    @property
    def text(self) -> str:
        """Return the content as one string, with a short text in place of each medium."""
        content = self.content or ""
        text = content if isinstance(content, str) else joined_text(content)
        return text if self.extras is None else "\n".join(filter(None, (text, *self.extras.replacements)))

    @property
    def num_parts(self) -> int:
        """Return the number of content parts and media."""
        parts = len(self.content) if isinstance(self.content, list) else 0
        return parts if self.extras is None else parts + len(self.extras.replacements)

    def fault(self) -> tuple[str, str] | None:
        """Return the name of a field that is wrong for the role, and why; None if there is none."""
        if self.role != "assistant" and not self.content and self.content != "" and not self._has_media:
            return "content", "content is missing"
        if self.role == "assistant" and self.content is None and not self.tool_calls and not self._has_media:
            return "content", "content may only be null in a message with tool_calls"
        if self.role != "assistant" and self.tool_calls:
            return "tool_calls", f"only messages of the role assistant have tool_calls, not {self.role}"
        if (self.role == "tool") != (self.tool_call_id is not None):
            return "tool_call_id", "a message has a tool_call_id if and only if its role is tool"
        return None

    def check_newest(self, path: str) -> None:
        """Raise `ApiError` (400) for media in a message that is the newest of the user."""
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if isinstance(part, MediaPart):
                raise refused_media(f"{path}.content.{index}", part.type, "messages")
        if self.extras is not None and self.extras.media is not None:
            field, kind = self.extras.media
            raise refused_media(f"{path}.{field}", kind, "messages")

    @property
    def _has_media(self) -> bool:
        return self.extras is not None and self.extras.media is not None

    def turn(self) -> dict[str, Any]:
        """Return the message as chat templates read it. `developer` is OpenAI's newer name of `system`."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        turn |= {name: value for name in OPTIONAL_FIELDS if (value := getattr(self, name)) is not None}
        if self.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": template_arguments(call.function.arguments)},
                }
                for call in self.tool_calls
            ]
        return turn


def check_messages(messages: Sequence[Message], *, is_continued: bool = False) -> None:
    """Raise `ApiError` (400) if the messages have more content parts than `MAX_CONTENT_PARTS` in all, one has fields
    that its role does not have or that cannot be honoured, or the newest one of the user has media.

    is_continued: the answer continues the last message.
    """
    parts = sum(message.num_parts for message in messages)
    if parts > MAX_CONTENT_PARTS:
        raise _invalid(f"messages must have at most {MAX_CONTENT_PARTS} content parts in all, got {parts}")
    for index, message in enumerate(messages):
        if (fault := message.fault()) is not None:
            name, why = fault
            raise _invalid(f"messages.{index}.{name}: {why}")
        if message.extras is not None and message.extras.has_function_call:
            raise _unsupported(f"messages.{index}.function_call; use tool_calls")
    last = messages[-1]
    continuation = last.extras.continuation if last.extras is not None else None
    if continuation is not None and last.role == "assistant" and not is_continued:
        raise _unsupported(f"messages.{len(messages) - 1}.{continuation}; use continue_final_message: true")
    newest = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if newest is not None:
        messages[newest].check_newest(f"messages.{newest}")


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, param="messages", code="invalid_value")


def _unsupported(message: str) -> ApiError:
    return ApiError(400, f"unsupported parameter: {message}", param="messages", code="unsupported_parameter")


def turns(messages: Iterable[Message]) -> Turns:
    """Return messages as chat templates read them. Results of calls get the name of the tool, which some read."""
    names: dict[str, str] = {}
    built: Turns = []
    for message in messages:
        turn = message.turn()
        names |= {call.id: call.function.name for call in message.tool_calls or ()}
        if message.tool_call_id is not None and message.tool_call_id in names:
            turn.setdefault("name", names[message.tool_call_id])
        built.append(turn)
    return built
