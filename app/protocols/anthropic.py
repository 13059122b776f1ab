"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's requests, as turns and parameters of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.generation.request import AnswerHead, ChatPrompt, GenerationRequest, Turns
from app.protocols.anthropic_encoder import AnthropicEncoder
from app.protocols.common import TextRequest, reasoning_variables
from app.protocols.responses_input import supported_types, type_of
from app.protocols.schema import (
    MAX_CONTENT_PARTS,
    FalseOnly,
    StopString,
    Strict,
    Unsupported,
    max_fields,
    only_value,
)
from app.protocols.tools import MAX_TOOLS, Parameters, ToolName
from app.text.content_format import ContentFormat
from app.text.tools.definitions import Tool, ToolUse
from engine.types import ServiceClass

MAX_MESSAGES = 4096
MAX_STOPS = 16
CacheControl = Annotated[dict[str, Any], max_fields(8)]  # accepted: the prefix cache needs no marks
TEXT_ONLY = "the models of this server only read text"


class TextBlock(Strict):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(max_length=1024)] | None = None  # of an earlier answer


class ThinkingBlock(Strict):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None  # not checked: reasoning is not secret here
    cache_control: CacheControl | None = None


class RedactedThinkingBlock(Strict):
    """Encrypted reasoning of another server, which is left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Strict):
    """Tool call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[dict[str, Any], max_fields(4096)]
    cache_control: CacheControl | None = None
    caller: Annotated[dict[str, Any], max_fields(8)] | None = None


TextBlocks = Annotated[
    list[Annotated[TextBlock, supported_types("text", advice=TEXT_ONLY)]],
    Field(fail_fast=True, max_length=MAX_CONTENT_PARTS),
]


class ToolResultBlock(Strict):
    """Result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | TextBlocks | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @property
    def text(self) -> str:
        """Return the result as one text, which says so if it is an error."""
        text = _text(self.content)
        return f"Error: {text}" if self.is_error else text


def _tag(value: Any) -> str:
    return f"[{type_of(value)}]"


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")],
    Discriminator(_tag),
    supported_types("text", "thinking", "redacted_thinking", "tool_use", "tool_result", advice=TEXT_ONLY),
]


class AnthropicMessage(Strict):
    """Message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True, max_length=MAX_CONTENT_PARTS)]


class AnthropicTool(Strict):
    """Tool that the answer may call. input_schema: JSON Schema of its arguments."""

    type: Annotated[str, only_value("custom")] | None = None
    name: ToolName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    # Accepted without effect: inputs are always streamed as they come, and the prefix cache needs no marks.
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    defer_loading: FalseOnly | None = None
    allowed_callers: Annotated[list[str], only_value(["direct"])] | None = None

    @property
    def definition(self) -> Tool:
        """Return the tool independent of protocols."""
        return Tool(self.name, self.description or "", self.input_schema, bool(self.strict))


class AnthropicToolChoice(Strict):
    """Choice among the tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Reasoning: off, on with a budget of tokens, or as the model likes."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=0, lt=2**31)
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(Strict):
    """Format of the answer: JSON that satisfies a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], max_fields(4096)] = Field(alias="schema")


class OutputConfig(Strict):
    """Effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class CountTokensRequest(TextRequest):
    """Body of `POST /v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[list[AnthropicMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    system: str | TextBlocks | None = None
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # earlier name of output_config.format
    cache_control: CacheControl | None = None
    # Accepted without effect: nothing is cleared from the context.
    context_management: Annotated[dict[str, Any], max_fields(64)] | None = None
    mcp_servers: Annotated[list[Any], only_value([])] | None = None
    container: Unsupported = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        self.tool_use()
        thinking = self.thinking
        if thinking is not None and (thinking.type == "enabled") != (thinking.budget_tokens is not None):
            raise _refused("thinking.budget_tokens", "it belongs to thinking of type enabled, and only to that")
        for index, message in enumerate(self.messages):
            _check_roles(index, message)

    @property
    def prompt(self) -> ChatPrompt:
        """Return the conversation for the chat template. A last message of the assistant is continued."""
        turns = _turns(self.messages, self.system)
        effort = self.output_config.effort if self.output_config is not None else None
        variables = reasoning_variables(effort)
        if self.thinking is not None:
            is_on = self.thinking.type != "disabled"
            variables |= {"enable_thinking": is_on, "thinking": is_on}
        continues = turns[-1]["role"] == "assistant" and not turns[-1].get("tool_calls")
        return ChatPrompt(
            turns=turns, tools=self.tool_use(), variables=variables or None, continue_final_message=continues
        )

    def tool_use(self) -> ToolUse | None:
        """Return the tools that the answer may call. Raises `ApiError` for a choice that names no tool."""
        tools = tuple(tool.definition for tool in self.tools or ())
        if len({tool.name for tool in tools}) < len(tools):
            raise _refused("tools", "two tools have the same name")
        choice = self.tool_choice or AnthropicToolChoice(type="auto")
        is_parallel = not choice.disable_parallel_tool_use
        if choice.type == "tool":
            if all(tool.name != choice.name for tool in tools):
                raise _refused("tool_choice.name", f"no tool in tools has the name {choice.name!r:.90}")
            return ToolUse(tools, "required", choice.name, is_parallel)
        if choice.type == "any":
            if not tools:
                raise _refused("tool_choice", "type any needs at least one tool in tools")
            return ToolUse(tools, "required", None, is_parallel)
        return ToolUse(tools, choice.type, None, is_parallel) if tools else None


class MessagesRequest(CountTokensRequest):
    """Body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1)
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    # Accepted without effect: it identifies the caller.
    metadata: Annotated[dict[str, Any], max_fields(64)] | None = None

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request. Its limit is reduced to the room that the context has left."""
        names = ("temperature", "top_p", "top_k")
        form = self.output_config.format if self.output_config is not None else None
        param = "output_config.format" if form is not None else "output_format"
        form = form or self.output_format
        return GenerationRequest(
            prompt=self.prompt,
            sampling={name: value for name in names if (value := getattr(self, name)) is not None},
            max_tokens=self.max_tokens,
            clips_max_tokens=True,
            stop=tuple(self.stop_sequences or ()),
            model=self.model,
            service_class=ServiceClass.STANDARD if self.service_tier == "standard_only" else None,
            content_format=ContentFormat("json_schema", form.schema_, param) if form is not None else None,
            thinking_budget=self.thinking.budget_tokens if self.thinking is not None else None,
            resume_seconds=resume_seconds,
            parameter_names={"prompt": "messages"},
            encoder=self._encoder,
        )

    def _encoder(self, head: AnswerHead) -> AnthropicEncoder:
        hides_thinking = self.thinking is not None and self.thinking.display == "omitted"
        return AnthropicEncoder(head, is_clipped=head.max_tokens < self.max_tokens, hides_thinking=hides_thinking)


def _check_roles(index: int, message: AnthropicMessage) -> None:
    """Raise `ApiError` (400) for blocks that a message of this role cannot have."""
    if isinstance(message.content, str):
        return
    kinds = {
        "user": (TextBlock, ToolResultBlock),
        "system": (TextBlock,),
        "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    }[message.role]
    for at, block in enumerate(message.content):
        if not isinstance(block, kinds):
            raise _refused(
                f"messages.{index}.content.{at}",
                f"a message of the role {message.role} cannot have a block of the type {block.type}",
            )


def _turns(messages: Sequence[AnthropicMessage], system: str | list[TextBlock] | None) -> Turns:
    """Return messages as chat templates read them. Adjacent messages of the user are one turn, as Anthropic reads
    them.
    """
    turns: Turns = [{"role": "system", "content": _text(system, "\n\n")}] if system else []
    names: dict[str, str] = {}
    for message in messages:
        blocks = [TextBlock(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
        for block in blocks:
            if isinstance(block, ToolUseBlock):
                names[block.id] = block.name
            elif isinstance(block, ToolResultBlock):
                name = {"name": names[block.tool_use_id]} if block.tool_use_id in names else {}
                turns.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text, **name})
        if message.role == "assistant":
            turns.append(_assistant_turn(text, blocks))
        elif message.role == "user" and turns and turns[-1]["role"] == "user":
            turns[-1]["content"] = f"{turns[-1]['content']}\n\n{text}"
        elif text or not blocks or not isinstance(blocks[0], ToolResultBlock):
            turns.append({"role": message.role, "content": text})
    return turns


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


def _text(content: str | list[TextBlock] | None, separator: str = "") -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return separator.join(block.text for block in content)


def _refused(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
