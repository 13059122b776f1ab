"""Messages of a conversation in OpenAI's format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import ApiError
from app.generation.request import Turns
from app.protocols.schema import MAX_CONTENT_PARTS, EmptyList, Strict, Unsupported, max_fields, only_value
from app.protocols.tools import template_arguments

MAX_MESSAGES = 4096  # of one conversation
MAX_CALLS = 1024  # of one message
OPTIONAL_FIELDS = ("name", "reasoning_content", "tool_call_id")  # of a message, for the chat template


class TextPart(Strict):
    """Part of a message's content; these models only read text."""

    type: Annotated[str, only_value("text")]
    text: str
    cache_control: Annotated[dict[str, Any], max_fields(8)] | None = None  # the prefix cache needs no marks


class CalledFunction(Strict):
    """Function of a tool call. arguments: the text of a JSON object."""

    name: str
    arguments: str = ""


class CalledTool(Strict):
    """Tool call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # in clients that send the pieces of a stream back


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)] | None = None
    # Passed to the template, which may ignore them (as in vLLM).
    name: str | None = None
    reasoning_content: str | None = None  # of an earlier answer; clients send it back with the rest
    tool_calls: Annotated[list[CalledTool], Field(fail_fast=True, max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    # Clients send an earlier answer back as history, including its fields without a value.
    refusal: Unsupported = None
    annotations: EmptyList | None = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @property
    def text(self) -> str:
        """Return the content as one string."""
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    def fault(self) -> tuple[str, str] | None:
        """Return the name of a field that is wrong for the role, and why; None if there is none."""
        if self.role != "assistant" and not self.content and self.content != "":
            return "content", "content is missing"
        if self.role == "assistant" and self.content is None and not self.tool_calls:
            return "content", "content may only be null in a message with tool_calls"
        if self.role != "assistant" and self.tool_calls:
            return "tool_calls", f"only messages of the role assistant have tool_calls, not {self.role}"
        if (self.role == "tool") != (self.tool_call_id is not None):
            return "tool_call_id", "a message has a tool_call_id if and only if its role is tool"
        return None

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


def check_messages(messages: Sequence[Message]) -> None:
    """Raise `ApiError` (400) if the messages have more content parts than `MAX_CONTENT_PARTS` in all, or one has fields
    that its role does not have.
    """
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    if parts > MAX_CONTENT_PARTS:
        raise ApiError(
            400,
            f"messages must have at most {MAX_CONTENT_PARTS} content parts in all, got {parts}",
            param="messages",
            code="invalid_value",
        )
    for index, message in enumerate(messages):
        if (fault := message.fault()) is not None:
            name, why = fault
            raise ApiError(400, f"messages.{index}.{name}: {why}", param="messages", code="invalid_value")


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
