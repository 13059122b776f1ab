"""`/api/chat` and `/api/generate`: Ollama's requests, as turns and parameters of the engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.generation.request import ChatPrompt, GenerationRequest
from app.protocols.common import TextRequest, template_variables
from app.protocols.messages import MAX_CALLS, MAX_MESSAGES, CalledFunction, CalledTool, Message, check_messages, turns
from app.protocols.ollama_encoder import ChatLines, GenerateLines, OllamaEncoder, timestamp
from app.protocols.schema import FalseOnly, Lenient, StopString, Strict, Unsupported, max_fields, only_value
from app.protocols.tools import MAX_TOOLS, Parameters, ToolName
from app.text.content_format import ContentFormat
from app.text.tools.definitions import Tool, ToolUse

MAX_STOPS = 16
DEFAULT_TAG = ":latest"
# Names of the engine's parameters in Ollama's options.
OPTION_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}


class OllamaOptions(Strict):
    """`options` of a request. Those of Ollama's own runner are accepted without effect: they change memory and speed
    there, and a context that is too short is refused in any case.
    """

    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-6, le=10.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    num_predict: Annotated[int, Field(ge=-2, lt=2**31)] | None = None  # below 1: as many as fit
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    repeat_last_n: Annotated[int, only_value(-1)] | None = None  # penalties count the whole text
    typical_p: Annotated[float, only_value(1.0)] | None = None
    tfs_z: Annotated[float, only_value(1.0)] | None = None
    mirostat: Annotated[int, only_value(0)] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: Annotated[bool, only_value(True)] | None = None
    num_ctx: int | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    num_thread: int | None = None
    main_gpu: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: FalseOnly | None = None
    embedding_only: FalseOnly | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the engine's sampling parameters that are set."""
        names = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.repeat_penalty is not None:
            values["repetition_penalty"] = self.repeat_penalty
        if self.seed is not None:
            values["seed"] = self.seed % 2**64
        return values


class OllamaCalledFunction(Lenient):
    """Function of a tool call in an earlier answer."""

    name: str
    arguments: Annotated[dict[str, Any], max_fields(4096)] = Field(default_factory=dict)


class OllamaCall(Lenient):
    """Tool call in an earlier answer."""

    id: str | None = None
    function: OllamaCalledFunction


class OllamaMessage(Lenient):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], Field(fail_fast=True, max_length=MAX_CALLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Annotated[list[Any], Field(max_length=MAX_MESSAGES)] | None = None


class OllamaFunction(Strict):
    """Function that the model may call. parameters: a JSON Schema of the arguments."""

    name: ToolName
    description: str | None = None
    parameters: Parameters | None = None


class OllamaTool(Strict):
    """Tool of the client."""

    type: Annotated[str, only_value("function")] | None = None
    function: OllamaFunction

    def tool(self) -> Tool:
        """Return the tool."""
        function = self.function
        return Tool(function.name, function.description or "", function.parameters or {})


def _format_tag(value: Any) -> str:
    return "[name]" if isinstance(value, str) else "[schema]"


Format = Annotated[
    Annotated[Literal["", "json"], Tag("[name]")] | Annotated[dict[str, Any], max_fields(4096), Tag("[schema]")],
    Discriminator(_format_tag),
]


class _ModelField(Strict):
    """Request that names a model. Ollama's clients add a default tag to names."""

    @classmethod
    def served_model(cls, name: str) -> str:
        """Return a name without the default tag."""
        return name.removesuffix(DEFAULT_TAG)


class OllamaRequest(_ModelField, TextRequest):
    """Fields that both requests have."""

    model: str | None = None
    options: OllamaOptions | None = None
    format: Format | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    # Accepted without effect: the model is served until the server ends.
    keep_alive: float | Annotated[str, Field(max_length=32)] | None = None
    # Ollama may shorten a prompt that is too long; here it is refused.
    truncate: FalseOnly | None = None
    shift: FalseOnly | None = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        if self.top_logprobs and not self.logprobs:
            raise _invalid("top_logprobs", "it needs logprobs: true")

    @property
    def is_streamed(self) -> bool:
        """Return whether the answer is sent in pieces, as it is by default."""
        return self.stream is not False

    def _request(
        self, prompt: ChatPrompt | str, lines: type[OllamaEncoder], resume_seconds: float
    ) -> GenerationRequest:
        options = self.options or OllamaOptions()
        limit = options.num_predict or 0
        return GenerationRequest(
            prompt=prompt,
            sampling=options.sampling | {"logprobs": (self.top_logprobs or 0) if self.logprobs else None},
            max_tokens=limit if limit > 0 else None,
            stop=options.stops,
            model=None if self.model is None else self.served_model(self.model),
            content_format=self._content_format(),
            resume_seconds=resume_seconds,
            parameter_names={name: f"options.{theirs}" for name, theirs in OPTION_NAMES.items()},
            encoder=partial(lines, name=self.model),
        )

    def _loaded(self, lines: type[OllamaEncoder]) -> dict[str, Any]:
        """Return the answer to a request for the model to be loaded, or to be unloaded, which has no effect."""
        reason = "unload" if self.keep_alive in (0, "0", "0s") else "load"
        head = {"created_at": timestamp(time.time())} | ({} if self.model is None else {"model": self.model})
        return {**head, **lines.piece(""), "done_reason": reason, "done": True}

    def _content_format(self) -> ContentFormat | None:
        if not self.format:
            return None
        schema = {"type": "object"} if self.format == "json" else self.format
        return ContentFormat("json_schema", schema, "format")

    @property
    def _variables(self) -> dict[str, Any] | None:
        """Return the template variables for reasoning."""
        if self.think is None:
            return None
        if isinstance(self.think, str):
            return template_variables(self.think)
        return {"enable_thinking": self.think, "thinking": self.think}


class OllamaChatRequest(OllamaRequest):
    """Body of `POST /api/chat`. Without messages it only asks for the model to be loaded."""

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[OllamaTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        if self.messages:
            check_messages(conversation(self.messages))
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise _invalid("tools", "two tools have the same name")

    @property
    def instant_answer(self) -> dict[str, Any] | None:
        """Return the answer to a request without messages."""
        return None if self.messages else self._loaded(ChatLines)

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request. A last message of the assistant is continued."""
        converted = turns(conversation(self.messages or ()))
        tools = tuple(tool.tool() for tool in self.tools or ())
        continues = converted[-1]["role"] == "assistant" and not converted[-1].get("tool_calls")
        prompt = ChatPrompt(
            turns=converted,
            tools=ToolUse(tools, "auto", None, None) if tools else None,
            variables=self._variables,
            continue_final_message=continues,
        )
        return self._request(prompt, ChatLines, resume_seconds)


class OllamaGenerateRequest(OllamaRequest):
    """Body of `POST /api/generate`. Without a prompt it only asks for the model to be loaded."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None  # the prompt is used without the chat template
    suffix: Annotated[str, only_value("")] | None = None
    template: Annotated[str, only_value("")] | None = None
    context: Annotated[list[int], only_value([])] | None = None
    images: Annotated[list[Any], only_value([])] | None = None
    width: Unsupported = None
    height: Unsupported = None
    steps: Unsupported = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        super().check()
        if self.raw and self.system:
            raise _invalid("system", "it cannot be combined with raw: true")

    @property
    def instant_answer(self) -> dict[str, Any] | None:
        """Return the answer to a request without a prompt."""
        return None if self.prompt else self._loaded(GenerateLines)

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request."""
        if self.raw:
            return self._request(self.prompt or "", GenerateLines, resume_seconds)
        messages = [OllamaMessage(role="system", content=self.system)] if self.system else []
        messages.append(OllamaMessage(role="user", content=self.prompt))
        prompt = ChatPrompt(turns=turns(conversation(messages)), variables=self._variables)
        return self._request(prompt, GenerateLines, resume_seconds)


class ShowRequest(_ModelField):
    """Body of `POST /api/show`."""

    model: str | None = None
    name: str | None = None  # earlier name of `model`
    verbose: bool | None = None


def conversation(messages: Iterable[OllamaMessage]) -> list[Message]:
    """Return messages in OpenAI's format. Calls and results without ids get some: a result belongs to the first call of
    its tool that has none.
    """
    converted: list[Message] = []
    open_calls: dict[str, str] = {}  # name by id
    for index, message in enumerate(messages):
        calls = _calls(message.tool_calls or (), index)
        open_calls |= {call.id: call.function.name for call in calls}
        fields: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.role == "tool":
            fields["tool_call_id"] = _answered(message, open_calls)
            fields["name"] = message.tool_name
        fields |= {"reasoning_content": message.thinking, "tool_calls": calls or None, "images": message.images}
        converted.append(Message.model_validate(fields))
    return converted


def _calls(calls: Sequence[OllamaCall], index: int) -> list[CalledTool]:
    return [
        CalledTool(
            id=call.id or f"call_{index}_{at}",
            function=CalledFunction(name=call.function.name, arguments=json.dumps(call.function.arguments)),
        )
        for at, call in enumerate(calls)
    ]


def _answered(message: OllamaMessage, open_calls: dict[str, str]) -> str:
    """Return the id of the call that a result answers, which is removed from the open ones."""
    known = message.tool_call_id
    if known is None:
        matching = (call for call, name in open_calls.items() if message.tool_name in (None, name))
        known = next(matching, f"call_{message.tool_name or 'unknown'}")
    open_calls.pop(known, None)
    return known


def _invalid(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", param=param, code="invalid_value")
