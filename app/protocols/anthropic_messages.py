"""Messages of `/v1/messages`: blocks of content, and their conversion to the turns of a conversation."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.generation.request import Turns
from app.protocols.media import MEDIA_TAG, TEXT_ONLY, MediaPart, Part, is_media, joined_text, part_tag, refused_media
from app.protocols.schema import MAX_CONTENT_PARTS, Lenient, max_fields
from app.protocols.typed_objects import supported_types, type_of


class CacheControl(Lenient):
    """Mark of a prompt whose conversation is expected to go on. ttl: for how long, 5 minutes if it is not given."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class MarkedBlock(Lenient):
    """Block that may have a mark."""

    cache_control: CacheControl | None = None


class TextBlock(MarkedBlock):
    """Text."""

    type: Literal["text"]
    text: str


class PlainTextSource(Lenient):
    """Text of a document."""

    type: Literal["text"]
    data: str


class TextDocumentBlock(MarkedBlock):
    """Document of plain text, which any model reads."""

    type: Literal["document"]
    source: PlainTextSource
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        """Return title, context and text."""
        return "\n\n".join(filter(None, (self.title, self.context, self.source.data))) + "\n"


class ThinkingBlock(Lenient):
    """Reasoning of an earlier answer. Its signature is not checked: reasoning is not secret here."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Lenient):
    """Encrypted reasoning of another server, which is left out."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(MarkedBlock):
    """Tool call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[dict[str, Any], max_fields(4096)]


class HostedCallBlock(Lenient):
    """Call of a hosted tool by another server, or its result, which are left out."""

    type: str


def _is_hosted_call(value: Any) -> bool:
    kind = type_of(value)
    return isinstance(kind, str) and (kind in HOSTED_CALLS or kind.endswith(HOSTED_RESULT))


TextBlocks = Annotated[
    list[Annotated[TextBlock, supported_types("text", advice=TEXT_ONLY)]],
    Field(fail_fast=True, max_length=MAX_CONTENT_PARTS),
]


HOSTED_CALLS = ("server_tool_use", "mcp_tool_use")
HOSTED_RESULT = "_tool_result"  # end of the types of results, such as `web_search_tool_result`
HOSTED_CALL_TAG = "[hosted_call]"
# Blocks with a text in any message.
READABLE_BLOCKS = (TextBlock, TextDocumentBlock, MediaPart)
TEXT_DOCUMENT_TAG = "[text_document]"


class ToolReferenceBlock(Lenient):
    """Result of a search for tools: a deferred tool, which can be called from now on."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        """Return the reference as the model reads it."""
        return f"The tool {self.tool_name} is loaded and can be called.\n"


def _tag(value: Any) -> str:
    """Return the tag of the schema for a block."""
    if _is_hosted_call(value):
        return HOSTED_CALL_TAG
    source = value.get("source") if type_of(value) == "document" else None
    return TEXT_DOCUMENT_TAG if type_of(source) == "text" else part_tag(value)


ResultPart = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ToolReferenceBlock, Tag("[tool_reference]")]
    | Annotated[TextDocumentBlock, Tag(TEXT_DOCUMENT_TAG)]
    | Annotated[MediaPart, Tag(MEDIA_TAG)],
    Discriminator(_tag),
    supported_types("text", "tool_reference", advice=TEXT_ONLY, accepts=is_media),
]


class ToolResultBlock(MarkedBlock):
    """Result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[ResultPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)] | None = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """Return the result as one text, which says so if it is an error."""
        text = _text(self.content)
        return f"Error: {text}" if self.is_error else text

    @property
    def loaded_tools(self) -> list[str]:
        """Return the names of the deferred tools that this result loads."""
        parts = self.content if isinstance(self.content, list) else []
        return [part.tool_name for part in parts if isinstance(part, ToolReferenceBlock)]


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")]
    | Annotated[TextDocumentBlock, Tag(TEXT_DOCUMENT_TAG)]
    | Annotated[HostedCallBlock, Tag(HOSTED_CALL_TAG)]
    | Annotated[MediaPart, Tag(MEDIA_TAG)],
    Discriminator(_tag),
    supported_types(
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        advice=TEXT_ONLY,
        accepts=lambda value: is_media(value) or _is_hosted_call(value),
    ),
]


class AnthropicMessage(Lenient):
    """Message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]

    @property
    def text(self) -> str:
        """Return the text blocks as one string, with a short text in place of each medium."""
        if isinstance(self.content, str):
            return self.content
        return joined_text(block for block in self.content if isinstance(block, READABLE_BLOCKS))

    @property
    def is_of_user(self) -> bool:
        """Return whether the user has written it. Results of tools are also sent in messages of this role, with the
        documents and images to which they refer beside them.
        """
        if self.role != "user" or isinstance(self.content, str):
            return self.role == "user"
        return not any(isinstance(block, ToolResultBlock) for block in self.content)


def marks(content: str | Sequence[object] | None) -> Iterator[CacheControl]:
    """Yield the marks of blocks."""
    for block in content if not isinstance(content, str) and content is not None else ():
        if isinstance(block, MarkedBlock) and block.cache_control is not None:
            yield block.cache_control


def check_newest_message(messages: Sequence[AnthropicMessage]) -> None:
    """Raise `ApiError` (400) for media in the newest message of the user."""
    newest = max((index for index, message in enumerate(messages) if message.is_of_user), default=None)
    for at, block in enumerate(messages[newest].content if newest is not None else ()):
        if isinstance(block, MediaPart):
            raise refused_media(f"messages.{newest}.content.{at}", block.type)


def check_roles(index: int, message: AnthropicMessage) -> None:
    """Raise `ApiError` (400) for blocks that a message of this role cannot have."""
    if isinstance(message.content, str):
        return
    kinds = {
        "user": (*READABLE_BLOCKS, ToolResultBlock),
        "system": READABLE_BLOCKS,
        "assistant": (*READABLE_BLOCKS, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock, HostedCallBlock),
    }[message.role]
    for at, block in enumerate(message.content):
        if not isinstance(block, kinds):
            raise refused(
                f"messages.{index}.content.{at}",
                f"a message of the role {message.role} cannot have a block of the type {block.type}",
            )


def loaded_tools(messages: Sequence[AnthropicMessage], names: Container[str]) -> set[str]:
    """Return the names of the deferred tools that messages load by a reference, or have called.

    names: those of all tools. Raises `ApiError` (400) for a reference to another one.
    """
    loaded: set[str] = set()
    for at, message in enumerate(messages):
        for index, block in enumerate([] if isinstance(message.content, str) else message.content):
            if isinstance(block, ToolUseBlock):
                loaded.add(block.name)
            elif isinstance(block, ToolResultBlock):
                loaded.update(block.loaded_tools)
                if missing := next((name for name in block.loaded_tools if name not in names), None):
                    raise refused(f"messages.{at}.content.{index}", f"no tool in tools has the name {missing!r:.90}")
    return loaded


def turns(messages: Sequence[AnthropicMessage], system: str | list[TextBlock] | None) -> Turns:
    """Return messages as chat templates read them, after a system turn with `system`.

    Adjacent messages of the user are one turn, as in Anthropic's API.
    """
    separate: Turns = [{"role": "system", "content": _system_text(system)}] if system else []
    names: dict[str, str] = {}
    for message in messages:
        blocks = [] if isinstance(message.content, str) else message.content
        text = message.text
        for block in blocks:
            if isinstance(block, ToolUseBlock):
                names[block.id] = block.name
            elif isinstance(block, ToolResultBlock):
                name = {"name": names[block.tool_use_id]} if block.tool_use_id in names else {}
                separate.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text, **name})
        if message.role == "assistant":
            separate.append(_assistant_turn(text, blocks))
        elif text or not blocks or not isinstance(blocks[0], ToolResultBlock):
            separate.append({"role": message.role, "content": text})
    joined: Turns = []
    for role, group in groupby(separate, key=itemgetter("role")):
        if role == "user":
            joined.append({"role": role, "content": "\n\n".join(turn["content"] for turn in group)})
        else:
            joined += group
    return joined


def _assistant_turn(text: str, blocks: Sequence[Any]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning := "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)):
        turn["reasoning_content"] = reasoning
    if calls := [block for block in blocks if isinstance(block, ToolUseBlock)]:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}}
            for call in calls
        ]
    return turn


def _text(content: str | Sequence[Part] | None) -> str:
    return content or "" if content is None or isinstance(content, str) else joined_text(content)


def _system_text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n\n".join(block.text for block in content)


def refused(param: str, message: str) -> ApiError:
    """Return the error (400) for a parameter with a wrong value."""
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
