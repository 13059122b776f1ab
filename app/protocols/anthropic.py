"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's requests, as turns and parameters of the engine."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.generation.request import AnswerHead, ChatPrompt, GenerationRequest
from app.protocols.anthropic_encoder import THREAD_UNSUPPORTED, AnthropicEncoder
from app.protocols.anthropic_messages import (
    AnthropicMessage,
    CacheControl,
    TextBlocks,
    check_newest_message,
    check_roles,
    loaded_tools,
    marks,
    refused,
    turns,
)
from app.protocols.common import TextRequest, template_variables
from app.protocols.hosted_tools import (
    HOSTED_TAG,
    HostedTool,
    check_callable,
    hosted_types,
    includes_direct,
    is_hosted,
)
from app.protocols.schema import StopString, Strict, Unsupported, max_fields, only_value
from app.protocols.tools import MAX_TOOLS, Parameters, ToolName
from app.text.content_format import ContentFormat
from app.text.tools.definitions import Tool, ToolUse
from engine.types import ServiceClass

TTL_SECONDS = {None: 5 * 60.0, "5m": 5 * 60.0, "1h": 3600.0}
MAX_MESSAGES = 4096
MAX_STOPS = 16
HOSTED_SEARCH = "tool_search_tool_"  # beginning of the types of hosted searches for deferred tools


class AnthropicTool(Strict):
    """Tool that the answer may call.

    input_schema: JSON Schema of its arguments. defer_loading: the model does not see the tool before a `tool_reference`
    names it.
    """

    type: Annotated[str, only_value("custom")] | None = None
    name: ToolName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: CacheControl | None = None
    # Accepted without effect: inputs are always streamed as they come.
    eager_input_streaming: bool | None = None
    allowed_callers: Annotated[list[str], includes_direct] | None = None

    @property
    def definition(self) -> Tool:
        """Return the tool independent of protocols."""
        return Tool(self.name, self.description or "", self.input_schema, bool(self.strict))


def _tool_tag(value: Any) -> str:
    return HOSTED_TAG if is_hosted(value) else "[custom]"


AnyTool = Annotated[
    Annotated[AnthropicTool, Tag("[custom]")] | Annotated[HostedTool, Tag(HOSTED_TAG)], Discriminator(_tool_tag)
]


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
    tools: Annotated[list[AnyTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # earlier name of output_config.format
    cache_control: CacheControl | None = None
    # Accepted without effect: nothing is cleared from the context, and no hosted tools are run.
    context_management: Annotated[dict[str, Any], max_fields(64)] | None = None
    mcp_servers: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=64)] | None = None
    container: Unsupported = None
    thread: Annotated[dict[str, Any], max_fields(64)] | None = None  # refused with a code that clients react to

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        if self.thread is not None:
            raise ApiError(
                400,
                "thread is not supported, because no messages are stored; send the whole conversation without it",
                param="thread",
                code=THREAD_UNSUPPORTED,
            )
        self.tool_use()
        thinking = self.thinking
        if thinking is not None and (thinking.type == "enabled") != (thinking.budget_tokens is not None):
            raise refused("thinking.budget_tokens", "it belongs to thinking of type enabled, and only to that")
        for index, message in enumerate(self.messages):
            check_roles(index, message)
        check_newest_message(self.messages)

    @property
    def ignored_tools(self) -> tuple[str, ...]:
        """Return the types of the tools that this server does not run."""
        return hosted_types(self.tools) + (("mcp_servers",) if self.mcp_servers else ())

    @property
    def prompt(self) -> ChatPrompt:
        """Return the conversation for the chat template. A last message of the assistant is continued."""
        converted = turns(self.messages, self.system)
        effort = self.output_config.effort if self.output_config is not None else None
        variables = template_variables(effort)
        if self.thinking is not None:
            is_on = self.thinking.type != "disabled"
            variables |= {"enable_thinking": is_on, "thinking": is_on}
        continues = converted[-1]["role"] == "assistant" and not converted[-1].get("tool_calls")
        return ChatPrompt(
            turns=converted, tools=self.tool_use(), variables=variables or None, continue_final_message=continues
        )

    def tool_use(self) -> ToolUse | None:
        """Return the tools that the answer may call. Raises `ApiError` for a choice that names no tool."""
        choice = self.tool_choice or AnthropicToolChoice(type="auto")
        tools = self._loaded_tools(choice)
        disabled = choice.disable_parallel_tool_use
        is_parallel = None if disabled is None else not disabled
        if choice.type == "tool":
            hosted = [tool for tool in self.tools or () if isinstance(tool, HostedTool) and tool.name == choice.name]
            check_callable(False, hosted_types(hosted), "tool_choice")
            if all(tool.name != choice.name for tool in tools):
                raise refused("tool_choice.name", f"no tool in tools has the name {choice.name!r:.90}")
            return ToolUse(tools, "required", choice.name, is_parallel)
        if choice.type == "any":
            check_callable(bool(tools), self.ignored_tools, "tool_choice")
            if not tools:
                raise refused("tool_choice", "type any needs at least one tool in tools")
            return ToolUse(tools, "required", None, is_parallel)
        return ToolUse(tools, choice.type, None, is_parallel) if tools else None

    def _loaded_tools(self, choice: AnthropicToolChoice) -> tuple[Tool, ...]:
        """Return the tools that the model sees: those that are not deferred, were loaded or called, or are chosen. If a
        hosted tool would search the deferred ones, the model sees all of them instead.
        """
        offered = [tool for tool in self.tools or () if isinstance(tool, AnthropicTool)]
        names = {tool.name for tool in offered}
        if len(names) < len(offered):
            raise refused("tools", "two tools have the same name")
        loaded = loaded_tools(self.messages, names) | {choice.name}
        if any(kind.startswith(HOSTED_SEARCH) for kind in self.ignored_tools):
            loaded |= names
        elif offered and all(tool.defer_loading for tool in offered):
            raise refused("tools", "at least one tool must not have defer_loading: true, such as a search for tools")
        return tuple(tool.definition for tool in offered if not tool.defer_loading or tool.name in loaded)


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
            session_seconds=self.session_seconds,
            parameter_names={"prompt": "messages"},
            encoder=self._encoder,
        )

    @property
    def session_seconds(self) -> float:
        """Return the seconds for which the client expects its conversation to go on; 0 if it says nothing of that."""
        tools = [tool.cache_control for tool in self.tools or () if isinstance(tool, AnthropicTool)]
        blocks = chain(marks(self.system), *(marks(message.content) for message in self.messages))
        given = [mark for mark in (self.cache_control, *tools, *blocks) if mark is not None]
        return max((TTL_SECONDS[mark.ttl] for mark in given), default=0.0)

    def _encoder(self, head: AnswerHead) -> AnthropicEncoder:
        hides_thinking = self.thinking is not None and self.thinking.display == "omitted"
        return AnthropicEncoder(head, is_clipped=head.max_tokens < self.max_tokens, hides_thinking=hides_thinking)
