"""Items of a realtime conversation: as clients send them, as a session keeps them, and as chat templates read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.errors import ApiError
from app.generation.request import Turns
from app.protocols import responses_input
from app.protocols.media import MEDIA_TAG, MediaPart, is_media, joined_text, refused_media
from app.protocols.schema import MAX_CONTENT_PARTS, Lenient
from app.protocols.tools import ToolName
from app.protocols.typed_objects import supported_types, tag_of

MAX_ITEMS = 1024  # of a conversation
MAX_CALL_ID_CHARACTERS = 128
ITEM_ADVICE = "tools that the server runs, such as mcp, have no items here"
ItemId = Annotated[str, Field(min_length=1, max_length=64)]
CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID_CHARACTERS)]
Status = Literal["completed", "incomplete", "in_progress"]


class ConversationItem:
    """Item of a conversation, complete or growing. Its text is the content of a message, the arguments of a call, or
    the output of a call. Only a message has a role, only calls and outputs have a call_id, only a call has a name.
    """

    __slots__ = ("__weakref__", "_pieces", "call_id", "id", "name", "role", "status", "type")

    def __init__(
        self,
        item_id: str,
        kind: str = "message",
        text: str = "",
        *,
        status: str = "completed",
        role: str = "assistant",
        call_id: str = "",
        name: str = "",
    ) -> None:
        self.id = item_id
        self.type = kind
        self.status = status
        self.role = role
        self.call_id = call_id
        self.name = name
        self._pieces = [text]

    @property
    def text(self) -> str:
        """Return the text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    @property
    def size(self) -> int:
        """Return the number of characters."""
        return len(self.text) + len(self.name) + len(self.call_id)

    @property
    def is_whole(self) -> bool:
        """Return whether the item is part of a prompt. A call that is not complete is none that can be answered."""
        return bool(self.text) if self.type == "message" else self.type != "function_call" or self.status == "completed"

    def as_of_now(self) -> ConversationItem:
        """Return an item that does not grow, for another thread."""
        if self.status != "in_progress":
            return self
        fields = {"status": self.status, "role": self.role, "call_id": self.call_id, "name": self.name}
        return ConversationItem(self.id, self.type, self.text, **fields)

    def grow(self, text: str) -> None:
        """Append to the text."""
        self._pieces.append(text)

    def part(self, text: str) -> dict[str, str]:
        """Return the content part of a message."""
        return {"type": "output_text" if self.role == "assistant" else "input_text", "text": text}

    def view(self) -> dict[str, Any]:
        """Return the item in the protocol's format."""
        return self._view(self.text, [self.part(self.text)])

    def opened_view(self) -> dict[str, Any]:
        """Return the item in the protocol's format as it began, without text."""
        return self._view("", [])

    def _view(self, text: str, parts: list[dict[str, str]]) -> dict[str, Any]:
        fields = {"id": self.id, "object": "realtime.item", "type": self.type, "status": self.status}
        match self.type:
            case "function_call":
                return fields | {"call_id": self.call_id, "name": self.name, "arguments": text}
            case "function_call_output":
                return fields | {"call_id": self.call_id, "output": text}
        return fields | {"role": self.role, "content": parts}


class ContentPart(Lenient):
    """A piece of an item's text."""

    type: Literal["input_text", "output_text", "text"]
    text: str


def _part_tag(value: Any) -> str:
    return MEDIA_TAG if is_media(value) else "[text]"


AnyPart = Annotated[
    Annotated[ContentPart, Tag("[text]")] | Annotated[MediaPart, Tag(MEDIA_TAG)], Discriminator(_part_tag)
]


class MessageFields(Lenient):
    """Message of the conversation."""

    id: ItemId | None = None
    type: Literal["message"] = "message"
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[AnyPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]
    status: Status | None = None

    @property
    def text(self) -> str:
        """Return the text of all parts, with a short text in place of each medium."""
        return joined_text(self.content)

    def item(self, item_id: str) -> ConversationItem:
        """Return the item as a session keeps it."""
        return ConversationItem(item_id, text=self.text, role=self.role, status=self.status or "completed")

    def check_newest(self, path: str) -> None:
        """Raise `ApiError` (400) for media in a message that is the newest of the user."""
        for at, part in enumerate(self.content):
            if self.role == "user" and isinstance(part, MediaPart):
                raise refused_media(f"{path}.content.{at}", part.type)


class CallFields(Lenient):
    """Call of a function. arguments: the text of a JSON object."""

    id: ItemId | None = None
    type: Literal["function_call"]
    call_id: CallId
    name: ToolName
    arguments: str
    status: Status | None = None

    def item(self, item_id: str) -> ConversationItem:
        """Return the item as a session keeps it."""
        status = self.status or "completed"
        return ConversationItem(
            item_id, "function_call", self.arguments, status=status, call_id=self.call_id, name=self.name
        )


class OutputFields(Lenient):
    """Output of a call, from the client."""

    id: ItemId | None = None
    type: Literal["function_call_output"]
    call_id: CallId
    output: str

    def item(self, item_id: str) -> ConversationItem:
        """Return the item as a session keeps it."""
        return ConversationItem(item_id, "function_call_output", self.output, call_id=self.call_id)


class ReferenceFields(Lenient):
    """Item of the conversation in the input of a response."""

    type: Literal["item_reference"]
    id: ItemId


# A tag is the type, in brackets as those of other unions.
_Message = Annotated[MessageFields, Tag("[message]")]
_Call = Annotated[CallFields, Tag("[function_call]")]
_Output = Annotated[OutputFields, Tag("[function_call_output]")]
_TYPES = ("message", "function_call", "function_call_output")
NewItem = Annotated[_Message | _Call | _Output, Discriminator(tag_of), supported_types(*_TYPES, advice=ITEM_ADVICE)]
InputItem = Annotated[
    _Message | _Call | _Output | Annotated[ReferenceFields, Tag("[item_reference]")],
    Discriminator(tag_of),
    supported_types(*_TYPES, "item_reference", advice=ITEM_ADVICE),
]


def _check_parts(items: list[InputItem]) -> list[InputItem]:
    if sum(len(item.content) for item in items if isinstance(item, MessageFields)) > MAX_CONTENT_PARTS:
        raise PydanticCustomError("too_long", "at most {most} content parts in all", {"most": MAX_CONTENT_PARTS})
    return items


Input = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_ITEMS), AfterValidator(_check_parts)]


def check_newest_message(items: Sequence[InputItem]) -> None:
    """Raise `ApiError` (400) for media in the newest message of the user in the input of a response."""
    users = (index for index, item in enumerate(items) if isinstance(item, MessageFields) and item.role == "user")
    newest = max(users, default=None)
    if newest is not None:
        message = items[newest]
        assert isinstance(message, MessageFields)
        message.check_newest(f"response.input.{newest}")


def turns(items: Iterable[ConversationItem], instructions: str | None) -> Turns:
    """Return items as chat templates read them, after a system turn with `instructions`. Raises `ApiError` (400) for
    the output of a call that is not before it, and if there is nothing to answer.
    """
    read: list[responses_input.InputItem] = []
    pending: set[str] = set()  # ids of calls without an output
    for item in items:
        if not item.is_whole:
            continue
        if item.type == "function_call":
            pending.add(item.call_id)
        elif item.type == "function_call_output":
            if item.call_id not in pending:
                raise _no_call(item)
            pending.remove(item.call_id)
        read.append(_input_item(item))
    found = responses_input.turns(read, instructions)
    if not found:
        raise ApiError(400, "there is no message to answer: create an item first", code="empty_conversation")
    return found


def _input_item(item: ConversationItem) -> responses_input.InputItem:
    """Return an item as that of `/v1/responses`. Its fields have been checked."""
    match item.type:
        case "function_call":
            return responses_input.FunctionCall.model_construct(
                type="function_call", call_id=item.call_id, name=item.name, arguments=item.text
            )
        case "function_call_output":
            return responses_input.FunctionCallOutput.model_construct(
                type="function_call_output", call_id=item.call_id, output=item.text
            )
    return responses_input.Message.model_construct(type="message", role=item.role, content=item.text)


def _no_call(item: ConversationItem) -> ApiError:
    message = (
        f"the item {item.id!r} is the output of the call {item.call_id!r}, but no complete function_call with that "
        "call_id is before it, or it has an output already; delete the output, or create the call before it"
    )
    return ApiError(400, message, code="function_call_not_found")
