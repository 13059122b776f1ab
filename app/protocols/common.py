"""Fields that the text protocols share, and their conversion to the engine's parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from app.admission.tenants import TIERS
from app.errors import ApiError
from app.generation.request import AnswerHead, ChatPrompt, GenerationRequest
from app.http.json_body import decode_json
from app.protocols.answers import OpenAIEncoder, UsageReports
from engine.types import SamplingParams, ServiceClass

MAX_STOP_LENGTH = 1024  # characters
MAX_NAME_CHARACTERS = 80  # of a field, in an error message

# Validation of lists stops at the first wrong item: a megabyte of wrong ones would otherwise become a gigabyte of error
# objects. Maximum lengths bound the time of a validation.
TokenIds = Annotated[list[int], Field(fail_fast=True, max_length=1 << 17)]
MAX_CONTENT_PARTS = 4096  # of all messages together

DeadlineMs = Annotated[int, Field(ge=1, lt=2**31)]  # from arrival to the last token


def max_fields(items: int) -> BeforeValidator:
    """Return a validator that refuses objects with more fields before any is validated, because each wrong field would
    become an error object.
    """

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > items:
            raise PydanticCustomError(
                "too_long", "at most {items} fields, got {given}", {"items": items, "given": len(value)}
            )
        return value

    return BeforeValidator(check)


Metadata = Annotated[dict[str, str], max_fields(64)]

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class Strict(BaseModel):
    """Schema with exact types and without unknown fields, which are refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def check(self) -> None:
        """Raise `ApiError` for values that are wrong in combination; `parse` calls it."""

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, fields: Any) -> Any:
        """Keep only one unknown field: each would become an error object, and a megabyte of them would block the event
        loop for seconds. Unknown fields with null count as left out, as some clients send them.
        """
        known = cls.model_fields
        if not isinstance(fields, dict) or fields.keys() <= known.keys():
            return fields
        first = next((name for name in fields if name not in known and fields[name] is not None), None)
        unknown = {} if first is None else {first: fields[first]}
        return {name: fields[name] for name in known if name in fields} | unknown


# A known but unsupported field: null counts as left out, as some clients send it; any other value is refused.
Unsupported: TypeAlias = None


def only_value(supported: Any) -> AfterValidator:
    """Return a validator that accepts a single supported value and refuses others as unsupported, not invalid."""

    def check(value: Any) -> Any:
        if value != supported:
            raise PydanticCustomError("unsupported", "only {done} is supported", {"done": json.dumps(supported)})
        return value

    return AfterValidator(check)


FalseOnly = Annotated[bool, only_value(False)]
EmptyList = Annotated[list[Any], only_value([])]


class StreamOptions(Strict):
    """`stream_options` of a streamed request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: FalseOnly | None = None


class TextRequest(Strict):
    """Body of a request that is answered with text."""

    stream: bool | None = None

    def generation_request(self, resume_seconds: float = 0.0) -> GenerationRequest:
        """Return the request for the service. resume_seconds: time for which it continues without a reader."""
        raise NotImplementedError


class SamplingFields(TextRequest):
    """Sampling and scheduling fields of `/v1/completions` and `/v1/chat/completions`."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)  # -1 and 0: off
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    top_n_sigma: float | None = Field(None, ge=0.0, le=100.0)  # 0: off
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, ge=1e-6, le=10.0)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]], max_fields(1024)] | None = None
    min_tokens: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopString | Annotated[list[StopString], Field(max_length=4, fail_fast=True)] | None = None
    stop_token_ids: TokenIds | None = Field(None, max_length=64)
    ignore_eos: bool | None = None
    n: int | None = Field(None, ge=1, le=16)
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    deadline_ms: DeadlineMs | None = None
    # Accepted without effect: they identify the caller or its records and change no answer.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: FalseOnly | None = None

    def check(self) -> None:
        """Check values that are wrong in combination. Raises `ApiError`."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options", code="invalid_value")

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def requested_class(self) -> ServiceClass | None:
        """Return the class that `service_tier` selects; None leaves it to the tenant's limits."""
        return None if self.service_tier in (None, "auto") else TIERS[self.service_tier]

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the engine's sampling parameters that are set. Raises `ApiError` for a wrong `logit_bias`."""
        values = {name: value for name in SAMPLING_NAMES if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            values["top_k"] = max(0, self.top_k)
        if self.seed is not None:
            values["seed"] = self.seed % 2**64
        if self.logit_bias is not None:
            values["logit_bias"] = _bias(self.logit_bias)
        return values

    def request(
        self,
        prompt: ChatPrompt | str | list[int],
        encoder: type[OpenAIEncoder],
        *,
        max_tokens: int | None,
        default_max_tokens: int | None = None,
        logprobs: int | None,
        names: Mapping[str, str] | None = None,
        resume_seconds: float,
    ) -> GenerationRequest:
        """Return the request with this protocol's prompt, limits and encoder. names: see `GenerationRequest`."""
        reports = self.stream_options or StreamOptions()

        def encoder_for(head: AnswerHead) -> OpenAIEncoder:
            prompt_tokens = head.prompt_tokens if reports.continuous_usage_stats else None
            return encoder(head, UsageReports(bool(reports.include_usage), prompt_tokens))

        return GenerationRequest(
            prompt=prompt,
            sampling=self.sampling | {"logprobs": logprobs},
            max_tokens=max_tokens,
            default_max_tokens=default_max_tokens,
            stop=self.stops,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            n=self.n or 1,
            model=self.model,
            service_class=self.requested_class,
            priority=self.priority or 0,
            deadline_ms=self.deadline_ms,
            resume_seconds=resume_seconds,
            parameter_names=names or {},
            encoder=encoder_for,
        )


# The engine's parameters that the schema has under the same name and with the same meaning.
SAMPLING_NAMES = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in SamplingFields.model_fields and name != "stop_token_ids"
)


def _bias(bias: dict[str, float]) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise ApiError(400, f"logit_bias: {key[:80]!r} is not a token id", param="logit_bias", code="invalid_value")
        result[int(key)] = value
    return result


Schema = TypeVar("Schema", bound=Strict)


def parse(schema: type[Schema], body: bytes) -> Schema:
    """Return `body` as `schema`. Raises `ApiError` (400) that names the first field that is wrong."""
    return validate(schema, decode_json(body))


def validate(schema: type[Schema], fields: Any) -> Schema:
    """Return decoded JSON as `schema`. Raises `ApiError` (400) that names the first field that is wrong."""
    try:
        requested = schema.model_validate(fields)
    except ValidationError as error:
        raise refusal(error) from None
    requested.check()
    return requested


def refusal(error: ValidationError, is_tagged: bool = False) -> ApiError:
    """Return the first problem of a validation as an error for the client.

    is_tagged: the schema is one of several that a tag selects; the parameter is then the whole path after the tag
    instead of its first field.
    """
    kind, path, message = _problem(error)
    path = path[1:] if is_tagged else path
    where = ".".join(path)
    param = (where if is_tagged else path[0]) if path else None
    if kind in ("extra_forbidden", "none_required", "unsupported"):
        more = f", {message}" if kind == "unsupported" else ""
        return ApiError(400, f"unsupported parameter: {where}{more}", param=param, code="unsupported_parameter")
    return ApiError(400, f"{where}: {message}" if path else message, param=param, code="invalid_value")


def _problem(error: ValidationError) -> tuple[str, list[str], str]:
    """Return type, path and message of the first problem. For a field with alternative types, choose the alternative
    that matches best: if a list is too long or wrong inside, report that instead of the fact that it is no string.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    same_field = [problem for problem in problems if problem["loc"][:1] == problems[0]["loc"][:1]]
    nearest = max(
        same_field,
        key=lambda problem: (problem["type"] == "too_long", len(problem["loc"]), not problem["type"].endswith("_type")),
    )
    path = nearest["loc"]
    # An unknown field may have any name, even that of a type.
    unknown = path[-1:] if nearest["type"] == "extra_forbidden" else ()
    known = [part for part in path[: len(path) - len(unknown)] if not _is_alternative(part)]
    return nearest["type"], [str(part)[:MAX_NAME_CHARACTERS] for part in (*known, *unknown)], nearest["msg"]


def _is_alternative(part: int | str) -> bool:
    """Return whether a part of a path is one of several alternative types of a field rather than a field."""
    return isinstance(part, str) and ("[" in part or part.startswith("constrained-") or part in ("str", "int"))
