"""Fields of a realtime session and of its responses, and the requests that they make.

Field names of the beta protocol are accepted beside those of the current one. Fields for audio and stored prompts have
no effect, since this server writes text: `SessionFields.view` states what is in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from app.errors import ApiError
from app.generation.request import ChatPrompt, GenerationRequest, Turns
from app.protocols.common import SESSION_SECONDS, template_variables
from app.protocols.hosted_tools import FUNCTIONS_ONLY, HOSTED_TAG, HostedTool, hosted_types, is_hosted, tool_tag
from app.protocols.realtime_items import Input
from app.protocols.responses_tools import FunctionTool, ToolChoice, tool_use
from app.protocols.schema import DeadlineMs, Lenient, Metadata, Strict, refusal
from app.protocols.tools import MAX_TOOLS
from app.protocols.typed_objects import supported_types
from app.text.tools.definitions import ToolUse
from engine.types import ServiceClass

SAMPLING_NAMES = ("temperature", "top_p", "seed")
# Names of the beta protocol, and the fields that they set.
BETA_NAMES = {"modalities": "output_modalities", "max_response_output_tokens": "max_output_tokens"}
MaxTokens = Annotated[int, Field(ge=1, lt=2**31)] | Literal["inf"]
# Audio is accepted, because it is the default of clients; the answer is text.
Modalities = Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=2)]
NoEffect = Any  # type of a field that is accepted without effect

Tools = Annotated[
    list[
        Annotated[
            Annotated[FunctionTool, Tag("[function]")] | Annotated[HostedTool, Tag(HOSTED_TAG)],
            Discriminator(tool_tag),
            supported_types("function", advice=FUNCTIONS_ONLY, accepts=is_hosted),
        ]
    ],
    Field(fail_fast=True, max_length=MAX_TOOLS),
]


class ReasoningFields(Lenient):
    """Reasoning of an answer, as far as the chat template has a switch for it."""

    effort: Annotated[str, Field(max_length=32)] | None = None


class RetentionRatio(Lenient):
    """Truncation to a part of the context, which is done as `auto`."""

    type: Literal["retention_ratio"]


class AnswerFields(Strict):
    """Fields that sessions and responses share. `temperature`, `top_p` and `seed` are extensions of the protocol."""

    instructions: str | None = None
    output_modalities: Modalities | None = None
    modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    max_response_output_tokens: MaxTokens | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningFields | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    audio: NoEffect = None
    voice: NoEffect = None
    output_audio_format: NoEffect = None
    prompt: NoEffect = None

    @property
    def limit(self) -> int | Literal["inf"] | None:
        """Return the maximum number of tokens of a response, under either name."""
        return self.max_output_tokens or self.max_response_output_tokens

    @property
    def ignored_tools(self) -> tuple[str, ...]:
        """Return the types of the tools that this server does not run."""
        return hosted_types(self.tools)


class SessionFields(AnswerFields):
    """Fields of `session.update`."""

    type: Literal["realtime"] | None = None
    model: str | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio | None = None
    id: NoEffect = None
    object: NoEffect = None
    expires_at: NoEffect = None
    client_secret: NoEffect = None
    include: NoEffect = None
    tracing: NoEffect = None
    turn_detection: NoEffect = None
    input_audio_format: NoEffect = None
    input_audio_noise_reduction: NoEffect = None
    input_audio_transcription: NoEffect = None
    speed: NoEffect = None

    @property
    def truncates(self) -> bool:
        """Return whether the oldest turns are dropped where the conversation is too long."""
        return self.truncation not in (None, "disabled")

    def view(self) -> dict[str, Any]:
        """Return the fields that are in force, in the protocol's format."""
        choice = self.tool_choice or "auto"
        view: dict[str, Any] = {
            "instructions": self.instructions or "",
            "output_modalities": ["text"],
            "audio": None,
            "max_output_tokens": self.limit or "inf",
            "tools": [tool.view() for tool in self.tools or () if isinstance(tool, FunctionTool)],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": None if self.reasoning is None else {"effort": self.reasoning.effort},
            "truncation": "auto" if self.truncates else "disabled",
            "tracing": None,
            "include": None,
            "prompt": None,
            **{name: getattr(self, name) for name in SAMPLING_NAMES},
        }
        return view | {"ignored_tools": self.ignored_tools} if self.ignored_tools else view


class ResponseFields(AnswerFields):
    """Fields of `response.create`."""

    conversation: Literal["auto", "none"] | None = None
    input: Input | None = None
    metadata: Metadata | None = None
    deadline_ms: DeadlineMs | None = None  # an extension too: time until the whole answer must be complete

    @property
    def is_in_conversation(self) -> bool:
        """Return whether the answer becomes part of the conversation."""
        return self.conversation != "none"


@dataclass(frozen=True, slots=True)
class SessionChange:
    """Valid fields of a `session.update`, and an error for the others; None if all are valid."""

    values: dict[str, Any]
    error: ApiError | None


# The outer names are the first parts of the paths in errors; `refusal` leaves out the first one.
_one_field: TypeAdapter[dict[str, dict[str, SessionFields]]] = TypeAdapter(dict[str, dict[str, SessionFields]])


def read_change(given: Any) -> SessionChange:
    """Return the fields of a `session.update`, each of which is checked by itself."""
    if not isinstance(given, dict):
        raise PydanticCustomError("dict_type", "Input should be an object")
    values: dict[str, Any] = {}
    errors: list[ApiError] = []
    known = SessionFields.model_fields.keys()
    unknown = next((name for name in given if name not in known and given[name] is not None), None)
    for name in (*(name for name in known if name in given), *(() if unknown is None else (unknown,))):
        try:
            values[BETA_NAMES.get(name, name)] = _read_field(name, given[name])
        except ApiError as error:
            errors.append(error)
    return SessionChange(values, _joined(errors, bool(values)))


def _read_field(name: str, value: Any) -> Any:
    try:
        fields = _one_field.validate_python({"event": {"session": {name: value}}})["event"]["session"]
    except ValidationError as error:
        raise refusal(error, is_tagged=True) from None
    if name == "tools" and fields.tools:
        try:
            tool_use(fields.tools, "auto", None)
        except ApiError as error:
            raise _located(error, "session") from None
    return getattr(fields, name)


def _joined(errors: Sequence[ApiError], has_others: bool) -> ApiError | None:
    """Return the first of some errors about fields, which also names the others."""
    if not errors:
        return None
    first = errors[0]
    others = ", ".join(str(error.param) for error in errors[1:])
    message = f"{first}; also refused: {others}" if others else str(first)
    if has_others:
        message += "; the other fields of this update are in force"
    return ApiError(first.status, message, param=first.param, code=first.code)


def _located(error: ApiError, where: str) -> ApiError:
    """Return an error about a field of `where`."""
    return ApiError(error.status, f"{where}.{error}", param=f"{where}.{error.param}", code=error.code)


def token_limit(response: ResponseFields, session: SessionFields) -> int | None:
    """Return the maximum number of tokens of a response; None: as many as fit."""
    limit = response.limit or session.limit
    return None if limit == "inf" else limit


def tools_of(response: ResponseFields, session: SessionFields) -> ToolUse | None:
    """Return the tools that a response may call. Raises `ApiError` (400) for a choice that they do not allow."""
    tools = session.tools if response.tools is None else response.tools
    choice = session.tool_choice if response.tool_choice is None else response.tool_choice
    parallel = session.parallel_tool_calls if response.parallel_tool_calls is None else response.parallel_tool_calls
    try:
        return tool_use(tools or (), choice or "auto", parallel)
    except ApiError as error:
        name = "tools" if str(error.param).startswith("tools") else "tool_choice"
        raise _located(error, "session" if getattr(response, name) is None else "response") from None


def generation_request(
    turns: Turns,
    response: ResponseFields,
    session: SessionFields,
    service_class: ServiceClass | None,
    stream_id: str | None,
    resume_seconds: float = 0.0,
) -> GenerationRequest:
    """Return the request for a response. Its fields replace those of the session.

    resume_seconds: time for which it continues without a reader.
    """
    requested = {name: getattr(response, name) for name in SAMPLING_NAMES}
    defaults = {name: getattr(session, name) for name in SAMPLING_NAMES}
    sampling = {name: defaults[name] if value is None else value for name, value in requested.items()}
    limit = "response.max_output_tokens" if response.limit else "session.max_output_tokens"
    prompt = "response.input" if response.input is not None else "conversation"
    reasoning = response.reasoning or session.reasoning
    variables = template_variables(None if reasoning is None else reasoning.effort)
    return GenerationRequest(
        prompt=ChatPrompt(turns=turns, tools=tools_of(response, session), variables=variables or None),
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_tokens=token_limit(response, session),
        service_class=service_class,
        deadline_ms=response.deadline_ms,
        truncates_prompt=session.truncates,
        stream_id=stream_id,
        resume_seconds=resume_seconds,
        session_seconds=SESSION_SECONDS,
        parameter_names={"prompt": prompt, "max_tokens": limit},
    )
