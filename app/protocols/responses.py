"""`/v1/responses`: request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, PrivateAttr, Tag, ValidationError
from pydantic_core import PydanticCustomError

from app.errors import ApiError
from app.generation.request import AnswerHead, ChatPrompt, GenerationRequest, effective_defaults
from app.protocols.answers import AnswerOptions, UsageReports
from app.protocols.common import SESSION_SECONDS, SamplingFields, StreamOptions, Verbosity, template_variables
from app.protocols.hosted_tools import hosted_types
from app.protocols.responses_encoder import ResponsesEncoder
from app.protocols.responses_input import (
    MAX_ITEMS,
    InputItem,
    Message,
    check_newest_message,
    count_parts,
    turns,
)
from app.protocols.responses_output import ResponseHead
from app.protocols.responses_tools import FunctionTool, NamespaceTool, ToolChoice, Tools, names_in_namespaces, tool_use
from app.protocols.schema import MAX_CONTENT_PARTS, FalseOnly, Metadata, Strict, Unsupported, only_value, refusal
from app.protocols.typed_objects import supported_types, tag_of
from app.text.content_format import ContentFormat

PARAMETER_NAMES = {"prompt": "input", "max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}

Included = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    # Contents of items that no answer has: calls of hosted tools, and messages and outputs of the client.
    "web_search_call.results",
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]
RecordId = Annotated[str, Field(min_length=1, max_length=128)]
Input = str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS)]


def unsupported(advice: str) -> BeforeValidator:
    """Return a validator that refuses all values but null. advice: the alternative."""

    def check(value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError("unsupported", "{advice}", {"advice": advice})
        return value

    return BeforeValidator(check)


class TextFormat(Strict):
    """Text without constraints."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None  # every answer satisfies the schema; without it, uniqueItems is optional


Format = Annotated[
    Annotated[TextFormat, Tag("[text]")]
    | Annotated[JsonObjectFormat, Tag("[json_object]")]
    | Annotated[JsonSchemaFormat, Tag("[json_schema]")],
    Discriminator(tag_of),
    supported_types("text", "json_object", "json_schema", advice="a JSON Schema can describe most formats"),
]


class TextConfig(Strict):
    """`text` of a request."""

    format: Format | None = None
    verbosity: Verbosity | None = None

    @property
    def content_format(self) -> ContentFormat | None:
        """Return the constraint on the answer."""
        match self.format:
            case JsonObjectFormat():
                return ContentFormat("json_schema", {"type": "object"}, "text.format")
            case JsonSchemaFormat(schema_=schema, strict=strict):
                return ContentFormat("json_schema", schema, "text.format.schema", is_strict=strict is True)
        return None

    def view(self) -> dict[str, Any]:
        """Return the field as a response repeats it."""
        form = {"type": "text"} if self.format is None else self.format.model_dump(by_alias=True)
        return {"format": form, "verbosity": self.verbosity or "medium"}


Summary = Literal["auto", "concise", "detailed"]


class ReasoningConfig(Strict):
    """`reasoning` of a request. No summaries are made: clients receive the whole reasoning."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Annotated[Literal["auto", "current_turn", "all_turns"], only_value("auto")] | None = None
    mode: Annotated[str, only_value("standard")] | None = None


TTL_SECONDS = {"30m": 30 * 60.0, "12h": 12 * 3600.0}


class PromptCacheOptions(Strict):
    """`prompt_cache_options` of a request, of which `ttl` has an effect: every prompt is cached while there is room."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: FalseOnly | None = None
    comparison_response_id: Unsupported = None


class ResponseStreamOptions(StreamOptions):
    """`stream_options` of a streamed request. The last event always has the usage."""

    include_usage: Unsupported = None
    continuous_usage_stats: Unsupported = None


class ConversationReference(Strict):
    """Reference to a conversation."""

    id: RecordId


def _conversation_tag(value: Any) -> str:
    return "[id]" if isinstance(value, str) else "[reference]"


ConversationParam = Annotated[
    Annotated[RecordId, Tag("[id]")] | Annotated[ConversationReference, Tag("[reference]")],
    Discriminator(_conversation_tag),
]


def _check_parts(items: Sequence[InputItem]) -> None:
    """Raise `ApiError` (400) for more content parts than one prompt may have."""
    parts = count_parts(items)
    if parts > MAX_CONTENT_PARTS:
        message = f"input must have at most {MAX_CONTENT_PARTS} content parts in all, got {parts}"
        raise ApiError(400, message, param="input", code="invalid_value")


class PromptFields(Strict):
    """Fields from which the prompt is made."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: RecordId | None = None
    conversation: ConversationParam | None = None
    _history: Sequence[InputItem] = PrivateAttr(default=())  # stored items before the input
    _prompt: ChatPrompt | None = PrivateAttr(default=None)  # made in a thread, if there are stored items

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        if self.previous_response_id is not None and self.conversation is not None:
            message = "previous_response_id and conversation exclude each other; send one of them"
            raise ApiError(400, message, param="conversation", code="invalid_value")
        if not isinstance(self.input, str):
            _check_parts(self.input)
            check_newest_message(self.input)

    @property
    def items(self) -> Sequence[InputItem]:
        """Return the items of the input."""
        return [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    @property
    def conversation_id(self) -> str | None:
        """Return the id of the conversation that the request belongs to."""
        return self.conversation.id if isinstance(self.conversation, ConversationReference) else self.conversation

    def completed(self, history: Sequence[InputItem], items: Sequence[InputItem]) -> Self:
        """Return the request with stored items.

        history: those before the input. items: the input without references. Raises `ApiError` (400) if there are too
        many in all.
        """
        total = len(history) + len(items)
        if total > MAX_ITEMS:
            message = (
                f"the input and the {len(history)} stored items before it are {total} items; at most {MAX_ITEMS} are "
                "allowed; send a summary as a new conversation"
            )
            raise ApiError(400, message, param="input", code="invalid_value")
        _check_parts([*history, *items])
        request = self.model_copy(update={"input": list(items)})
        request._history = history
        request._prompt = request.chat_prompt
        return request

    @classmethod
    def api_error(cls, error: ValidationError) -> ApiError:
        """Return the first problem of a validation as an error for the client."""
        return refusal(error, has_brackets=True)

    @property
    def ignored_tools(self) -> tuple[str, ...]:
        """Return the types of the tools that this server does not run."""
        return hosted_types(self.tools)

    @property
    def chat_prompt(self) -> ChatPrompt:
        """Return the conversation for the chat template. Raises `ApiError` for calls and tools that do not match."""
        if self._prompt is not None:
            return self._prompt
        items = [*self._history, *self.items]
        tools = tool_use(self.tools or [], self.tool_choice or "auto", self.parallel_tool_calls)
        verbosity = self.text.verbosity if self.text else None
        variables = template_variables(self.reasoning.effort if self.reasoning else None, verbosity)
        return ChatPrompt(
            turns=turns(items, self.instructions, len(self._history)), tools=tools, variables=variables or None
        )

    def repeated_fields(self) -> dict[str, Any]:
        """Return the fields that a response repeats, with effective values."""
        effort = None if self.reasoning is None else self.reasoning.effort
        choice = self.tool_choice or "auto"
        return {
            "instructions": self.instructions,
            "tools": [tool.view() for tool in self.tools or [] if isinstance(tool, FunctionTool | NamespaceTool)],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": (self.text or TextConfig()).view(),
            "reasoning": {"effort": effort, "summary": None},
            "truncation": self.truncation or "disabled",
            "previous_response_id": self.previous_response_id,
            "conversation": None if self.conversation_id is None else {"id": self.conversation_id},
        }


class InputTokensRequest(PromptFields):
    """Body of `POST /v1/responses/input_tokens`, which counts the whole input."""

    truncation: Annotated[Literal["auto", "disabled"], only_value("disabled")] | None = None


class ResponsesRequest(PromptFields, SamplingFields):
    """Body of `POST /v1/responses`. Sampling fields of chat completions are accepted as extensions, as in vLLM."""

    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Annotated[list[Included], Field(fail_fast=True, max_length=16)] | None = None
    stream_options: ResponseStreamOptions | None = None
    n: Unsupported = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=2**31)  # an extension, as in chat completions
    background: bool | None = None
    # Accepted without effect: there are no built-in tools, and the rest changes no answer.
    max_tool_calls: int | None = Field(None, ge=1)
    prompt_cache_options: PromptCacheOptions | None = None
    client_metadata: Metadata | None = None
    background_options: Unsupported = None
    response_format: Annotated[None, unsupported('use text, such as {"format": ...}')] = None
    prompt_logprobs: Unsupported = None
    prompt: Annotated[None, unsupported("no prompt is stored; send its text in instructions and input")] = None
    context_management: Annotated[None, unsupported("the server does not compact; send a shorter input")] = None
    moderation: Unsupported = None
    image: Unsupported = None
    access_programs: Unsupported = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        if self.store is False and (self.background or self.conversation is not None):
            needed = "background: true" if self.background else "conversation"
            raise ApiError(400, f"store must be true or omitted with {needed}", param="store", code="invalid_value")

    @property
    def can_store(self) -> bool:
        return True

    @property
    def is_background(self) -> bool:
        return bool(self.background)

    @property
    def has_output(self) -> bool:
        """Return whether an answer is wanted, and not only that its prompt is prepared."""
        return True

    @property
    def is_stored(self) -> bool:
        """Return whether the response can be read and continued later."""
        return self.store is not False

    def without_context(self) -> Self:
        """Return the request with an empty input, which still gives the encoder of its answer."""
        return self.model_copy(update={"input": ""})

    @property
    def session_seconds(self) -> float:
        """Return the seconds for which the client expects its conversation to go on; 0 if it says nothing of that."""
        ttl = self.prompt_cache_options.ttl if self.prompt_cache_options is not None else None
        is_stored = self.previous_response_id is not None or self.conversation is not None
        seconds = TTL_SECONDS[ttl] if ttl is not None else SESSION_SECONDS if is_stored else 0.0
        return max(super().session_seconds, seconds)

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request. Its limit is reduced to the room that the context has left."""
        request = self.request(
            self.chat_prompt,
            self._encoder,
            max_tokens=self.max_output_tokens,
            logprobs=self._logprobs,
            names=PARAMETER_NAMES,
            thinking_budget=self.thinking_token_budget,
            resume_seconds=resume_seconds,
        )
        return replace(
            request,
            clips_max_tokens=True,
            truncates_prompt=self.truncation == "auto",
            needs_reader=not self.is_background,
        )

    def content_format(self) -> ContentFormat | None:
        """Return the format of the answer. Raises `ApiError` (400) for fields that contradict each other."""
        by_text = self.text.content_format if self.text is not None else None
        other = super().content_format()
        if by_text is not None and other is not None:
            message = "text.format and structured_outputs cannot be combined"
            raise ApiError(400, message, param="structured_outputs", code="invalid_value")
        return by_text or other

    @property
    def _logprobs(self) -> int | None:
        """Return the number of alternatives of each token; None for no log-probabilities."""
        if self.top_logprobs or "message.output_text.logprobs" in (self.include or []):
            return self.top_logprobs or 0
        return None

    def _encoder(self, head: AnswerHead, reports: UsageReports, options: AnswerOptions) -> ResponsesEncoder:
        sampling = effective_defaults(head.text.sampling_defaults) | self.sampling
        limit = self.max_output_tokens
        fields = self.repeated_fields() | {
            "background": self.is_background,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "max_output_tokens": None if limit is None else min(limit, head.max_tokens),
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "presence_penalty": self.presence_penalty or 0.0,
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
            "store": self.is_stored,
            "temperature": sampling["temperature"],
            "top_logprobs": self._logprobs or 0,
            "top_p": sampling["top_p"],
            "user": self.user,
        }
        return ResponsesEncoder(ResponseHead(head, fields, names_in_namespaces(self.tools or []), self.has_output))
