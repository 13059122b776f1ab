"""Messages of a conversation in OpenAI's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag

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


class Message(Lenient):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)] | None = None
    # Passed to the template, which may ignore them (as in vLLM).
    name: str | None = None
    reasoning_content: str | None = None  # of an earlier answer; clients send it back with the rest
    reasoning: Any = None  # other servers' name of it, if it is a text
    tool_calls: Annotated[list[CalledTool], Field(fail_fast=True, max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    refusal: Any = None  # text of an earlier answer that has no other
    # Refused where they would have an effect.
    function_call: Any = None
    images: Any = None
    audio: Any = None
    videos: Any = None
    files: Any = None
    attachments: Any = None
    experimental_attachments: Any = None
    prefix: Any = None
    partial: Any = None
    _media: list[str] = PrivateAttr(default_factory=list)

    @property
    def text(self) -> str:
        """Return the content as one string, with a short text in place of each medium."""
        if self.content is None:
            content = self.refusal if isinstance(self.refusal, str) else ""
        else:
            content = self.content if isinstance(self.content, str) else joined_text(self.content)
        return "\n".join(filter(None, (content, *self._media))) if self._media else content

    def model_post_init(self, context: Any, /) -> None:
        """Make the texts that replace media beside the content. Validation is in a thread if there are many."""
        if self.model_fields_set.isdisjoint(MEDIA_FIELDS):
            return
        for field, kind in MEDIA_FIELDS.items():
            if value := getattr(self, field):
                values = value[: MAX_CONTENT_PARTS + 1] if isinstance(value, list) else [value]  # more are refused
                self._media += [placeholder(kind, each) for each in values]

    @property
    def num_parts(self) -> int:
        """Return the number of content parts and media."""
        return (len(self.content) if isinstance(self.content, list) else 0) + len(self._media)

    def fault(self) -> tuple[str, str] | None:
        """Return the name of a field that is wrong for the role, and why; None if there is none."""
        if self.role != "assistant" and not self.content and self.content != "" and not self._media:
            return "content", "content is missing"
        if self.role == "assistant" and self.content is None and not self.tool_calls and not self.text:
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
        for field, kind in MEDIA_FIELDS.items():
            if getattr(self, field):
                raise refused_media(f"{path}.{field}", kind, "messages")

    def turn(self) -> dict[str, Any]:
        """Return the message as chat templates read it. `developer` is OpenAI's newer name of `system`."""
        reasoning = self.reasoning_content
        if reasoning is None and isinstance(self.reasoning, str):
            reasoning = self.reasoning
        optional = {"name": self.name, "reasoning_content": reasoning, "tool_call_id": self.tool_call_id}
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        turn |= {name: value for name, value in optional.items() if value is not None}
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
        if message.function_call:
            raise _unsupported(f"messages.{index}.function_call; use tool_calls")
    last = messages[-1]
    field = next((field for field in CONTINUATION_FIELDS if getattr(last, field)), None)
    if field is not None and last.role == "assistant" and not is_continued:
        raise _unsupported(f"messages.{len(messages) - 1}.{field}; use continue_final_message: true")
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
