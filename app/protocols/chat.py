"""`/v1/chat/completions`: request, chunks and response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import ApiError
from app.generation.request import ChatPrompt, GenerationRequest
from app.protocols.answers import ChoiceText, OpenAIEncoder, logprob_entries, prompt_logprobs
from app.protocols.common import SamplingFields, Verbosity, template_variables
from app.protocols.hosted_tools import hosted_types
from app.protocols.messages import MAX_MESSAGES, Message, check_messages, turns
from app.protocols.schema import EmptyList, Unsupported, max_fields, only_value
from app.protocols.tools import FunctionTool, ToolChoice, Tools, callable_choice, tool_use
from app.streams.stream_log import Delta, TokenInfo, ToolCallPiece
from app.text.tools.definitions import ToolUse

# Further variables of the template, such as `enable_thinking` (as in vLLM).
TemplateVariables = Annotated[dict[str, str | bool | int | float | None], max_fields(64)]


class ChatRequest(SamplingFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(fail_fast=True)] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: EmptyList | None = None
    function_call: Unsupported = None
    modalities: Annotated[list[str], only_value(["text"])] | None = None
    audio: Unsupported = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=2**31)
    verbosity: Verbosity | None = None
    web_search_options: Unsupported = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        check_messages(self.messages, is_continued=bool(self.continue_final_message))
        self.tool_use()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ApiError(
                400,
                f"max_tokens ({self.max_tokens}) and max_completion_tokens ({self.max_completion_tokens}) disagree",
                param="max_completion_tokens",
                code="invalid_value",
            )
        if self.continue_final_message:
            self._check_continued()

    @property
    def can_store(self) -> bool:
        return True

    @property
    def is_stored(self) -> bool:
        return bool(self.store)

    def tool_use(self) -> ToolUse | None:
        """Return the tools that the answer may call. Raises `ApiError` for a wrong choice."""
        tools = [tool.tool() for tool in self.tools or () if isinstance(tool, FunctionTool)]
        choice = callable_choice(tools, self.ignored_tools, self.tool_choice)
        return tool_use(tools, choice, parallel=self.parallel_tool_calls)

    @property
    def ignored_tools(self) -> tuple[str, ...]:
        """Return the types of the tools that this server does not run."""
        return hosted_types(self.tools)

    def _check_continued(self) -> None:
        last = self.messages[-1].role
        fault = None
        if self.add_generation_prompt:
            fault = "continue_final_message and add_generation_prompt cannot both be true: set one of them to false"
        elif last != "assistant":
            fault = f"continue_final_message needs a last message with the role 'assistant', got {last!r}"
        if fault is not None:
            raise ApiError(400, fault, param="continue_final_message", code="invalid_value")

    @property
    def prompt(self) -> ChatPrompt:
        """Return the conversation for the chat template."""
        return ChatPrompt(
            turns=turns(self.messages),
            tools=self.tool_use(),
            variables=template_variables(self.reasoning_effort, self.verbosity) | (self.chat_template_kwargs or {}),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
        )

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request. Without a limit the answer may have as many tokens as fit."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return self.request(
            self.prompt,
            ChatEncoder,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            names={"prompt": "messages", "max_tokens": limit},
            thinking_budget=self.thinking_token_budget,
            resume_seconds=resume_seconds,
        )


def _call_piece(piece: ToolCallPiece) -> dict[str, Any]:
    """Return a piece of a tool call. Clients append its strings, so only the first piece has id, type and name."""
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


class ChatEncoder(OpenAIEncoder):
    """Encoder of chat completions."""

    __slots__ = ()

    prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def start(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def delta(self, delta: Delta) -> dict[str, Any]:
        content: dict[str, Any] = {"content": delta.text}
        if delta.reasoning or delta.calls:
            content = {"reasoning_content": delta.reasoning} if delta.reasoning else {}
            content |= {"content": delta.text} if delta.text else {}
            content |= {"tool_calls": [_call_piece(piece) for piece in delta.calls]} if delta.calls else {}
        return {"delta": content, "logprobs": self._logprobs(delta.infos)}

    def finished(self) -> dict[str, Any]:
        return {"delta": {}, "logprobs": None}

    def choice_body(self, content: ChoiceText) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content.text, "refusal": None}
        if content.reasoning:
            message["reasoning_content"] = content.reasoning
        if content.calls:
            message["content"] = content.text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in content.calls
            ]
        return {"message": message, "logprobs": self._logprobs(content.infos)}

    def shared_body(self, content: ChoiceText) -> dict[str, Any]:
        """Return the log-probabilities of the prompt, beside the choices as in vLLM."""
        if content.prompt is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(content.prompt, self._head.text)}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any] | None:
        return {"content": logprob_entries(self._head.text, infos), "refusal": None} if infos else None
