"""Input items of `/v1/responses`, and their conversion to the turns of a conversation.

Output items of an answer are valid input items, as clients send them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.generation.request import Turns
from app.protocols.media import MEDIA_TAG, TEXT_ONLY, MediaPart, is_media, joined_text, part_tag, refused_media
from app.protocols.schema import MAX_CONTENT_PARTS, Lenient
from app.protocols.tools import template_arguments
from app.protocols.typed_objects import supported_types, type_of

MAX_ITEMS = 4096  # of one input


class InputText(Lenient):
    """Text from the client."""

    type: Literal["input_text"]
    text: str


class OutputText(Lenient):
    """Text of an earlier answer. Its annotations and log-probabilities are not shown to the model."""

    type: Literal["output_text"]
    text: str


class RefusalPart(Lenient):
    """Refusal of an earlier answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """Return the refusal's text."""
        return self.refusal


ContentPart = Annotated[
    Annotated[InputText, Tag("[input_text]")]
    | Annotated[OutputText, Tag("[output_text]")]
    | Annotated[RefusalPart, Tag("[refusal]")]
    | Annotated[MediaPart, Tag(MEDIA_TAG)],
    Discriminator(part_tag),
    supported_types("input_text", "output_text", "refusal", advice=TEXT_ONLY, accepts=is_media),
]
Content = str | Annotated[list[ContentPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]


def _text(content: Content) -> str:
    return content if isinstance(content, str) else joined_text(content)


class Message(Lenient):
    """Message of a conversation."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


def qualified_name(name: str, namespace: str | None) -> str:
    """Return the name of a function for the model: templates and tool formats have no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


class FunctionCall(Lenient):
    """Call of a function by an earlier answer. arguments: the text of a JSON object."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    namespace: Annotated[str, Field(min_length=1)] | None = None

    def template_form(self) -> dict[str, Any]:
        """Return the call as chat templates read it, in the format of OpenAI's chat completions."""
        function = {
            "name": qualified_name(self.name, self.namespace),
            "arguments": template_arguments(self.arguments),
        }
        return {"id": self.call_id, "type": "function", "function": function}


class FunctionCallOutput(Lenient):
    """Result of a function call, from the client."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Content


class SummaryText(Lenient):
    """Part of the summary of a reasoning item."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(Lenient):
    """Part of the text of a reasoning item."""

    type: Literal["reasoning_text"]
    text: str


class Reasoning(Lenient):
    """Reasoning of an earlier answer. Encrypted content is not read, because only its author has the key."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)] | None = None
    content: Annotated[list[ReasoningText], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)] | None = None

    @property
    def text(self) -> str:
        """Return the whole text, or the summary if that is all there is."""
        return "\n\n".join(part.text for part in self.content or self.summary or [])


class HostedCall(Lenient):
    """Call of a hosted tool by another server, which is left out."""

    type: str


class ItemReference(Lenient):
    """Reference to a stored item, which replaces it before a prompt is made."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(min_length=1, max_length=128)]


# Items of hosted tools. Those that a client runs, such as shells, have results on which the conversation depends.
HOSTED_ITEMS = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
    }
)
IMAGE_ITEM = "image_generation_call"  # an image in the answer of another server
HOSTED_CALL_TAG = "[hosted_call]"


def _item_tag(value: Any) -> str:
    return HOSTED_CALL_TAG if _is_hosted_call(value) else part_tag(value)


def _is_hosted_call(value: Any) -> bool:
    kind = type_of(value)
    return isinstance(kind, str) and kind in HOSTED_ITEMS


InputItem = Annotated[
    Annotated[Message, Tag("[message]")]
    | Annotated[FunctionCall, Tag("[function_call]")]
    | Annotated[FunctionCallOutput, Tag("[function_call_output]")]
    | Annotated[Reasoning, Tag("[reasoning]")]
    | Annotated[ItemReference, Tag("[item_reference]")]
    | Annotated[HostedCall, Tag(HOSTED_CALL_TAG)]
    | Annotated[MediaPart, Tag(MEDIA_TAG)],
    Discriminator(_item_tag),
    supported_types(
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "item_reference",
        advice="a message can have its text",
        accepts=lambda value: _is_hosted_call(value) or type_of(value) == IMAGE_ITEM,
    ),
]


@dataclass
class _AssistantTurn:
    """Consecutive items of an assistant, which are one turn for chat templates."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def template_form(self) -> Turns:
        """Return the turn, if there is one: reasoning without an answer is none."""
        if not self.texts and not self.calls:
            return []
        turn: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(self.texts)}
        if self.reasoning:
            turn["reasoning_content"] = "\n\n".join(self.reasoning)
        if self.calls:
            turn["tool_calls"] = self.calls
        return [turn]


def turns(items: Iterable[InputItem], instructions: str | None = None, num_stored: int = 0) -> Turns:
    """Return items as chat templates read them, after a system turn with `instructions`. Raises `ApiError` (400) for
    the output of a call that does not precede it or already has an output.

    num_stored: number of stored items before those of the request.
    """
    converted: Turns = [{"role": "system", "content": instructions}] if instructions else []
    answer = _AssistantTurn()
    pending: set[str] = set()  # ids of calls without an output
    for index, item in enumerate(items):
        match item:
            case Message(role="assistant"):
                answer.texts.append(_text(item.content))
            case MediaPart():
                answer.texts.append(item.text)
            case Reasoning():
                answer.reasoning += [item.text] if item.text else []
            case FunctionCall():
                answer.calls.append(item.template_form())
                pending.add(item.call_id)
            case FunctionCallOutput(call_id=call_id):
                if call_id not in pending:
                    raise _no_call(index - num_stored, call_id)
                pending.remove(call_id)
                converted += answer.template_form()
                answer = _AssistantTurn()
                converted.append({"role": "tool", "tool_call_id": call_id, "content": _text(item.output)})
            case Message():
                converted += answer.template_form()
                answer = _AssistantTurn()
                role = "system" if item.role == "developer" else item.role
                converted.append({"role": role, "content": _text(item.content)})
    return converted + answer.template_form()


def _no_call(index: int, call_id: str) -> ApiError:
    where = f"input[{index}].call_id" if index >= 0 else "conversation"
    message = f"{where}: no function_call before this item has the call_id {call_id[:80]!r} and lacks an output"
    return ApiError(400, message, param=where, code="invalid_value")


def check_newest_message(items: Sequence[InputItem]) -> None:
    """Raise `ApiError` (400) for media in the newest message of the user."""
    users = (index for index, item in enumerate(items) if isinstance(item, Message) and item.role == "user")
    newest = max(users, default=None)
    message = items[newest] if newest is not None else None
    for at, part in enumerate(message.content if isinstance(message, Message) else ()):
        if isinstance(part, MediaPart):
            raise refused_media(f"input[{newest}].content[{at}]", part.type)


def count_parts(items: Iterable[InputItem]) -> int:
    """Return the number of content parts of all items."""
    return sum(len(part) for item in items for part in _part_lists(item) if isinstance(part, list))


def _part_lists(item: InputItem) -> tuple[Any, ...]:
    match item:
        case Message():
            return (item.content,)
        case FunctionCallOutput():
            return (item.output,)
        case Reasoning():
            return (item.content, item.summary)
    return ()
