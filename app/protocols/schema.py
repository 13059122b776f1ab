"""Schemas of request bodies: exact types, refusals that name the first wrong field, and validation in bounded time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.errors import ApiError
from app.http.json_body import decode_json

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

    @classmethod
    def api_error(cls, error: ValidationError) -> ApiError:
        """Return the first problem of a validation as an error for the client."""
        return refusal(error)

    @classmethod
    def served_model(cls, name: str) -> str:
        """Return the name under which the model is served that clients of the protocol call `name`."""
        return name

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, fields: Any) -> Any:
        """Keep only one unknown field: each would become an error object, and a megabyte of them would block the event
        loop for seconds. Unknown fields with null count as left out, as some clients send them.
        """
        if not isinstance(fields, dict) or fields.keys() <= cls.model_fields.keys():
            return fields
        known = [field.alias or name for name, field in cls.model_fields.items()]
        first = next((name for name in fields if name not in known and fields[name] is not None), None)
        unknown = {} if first is None else {first: fields[first]}
        return {name: fields[name] for name in known if name in fields} | unknown


class Lenient(Strict):
    """Schema of a part of a conversation. Clients keep conversations with fields of their own and of other servers, and
    send them back as they are: unknown fields are ignored. A field that would have an effect is declared, to be refused
    by name.
    """

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, fields: Any) -> Any:
        """Leave all fields as they are, because ignored ones become no error objects."""
        return fields


# A known but unsupported field: null counts as left out, as some clients send it; any other value is refused.
Unsupported: TypeAlias = None


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, because a supported list has no hash
class OnlyValue:
    """Annotation of a field with a single supported value, which is also the only one in its JSON Schema."""

    supported: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {"const": self.supported}

    def _check(self, value: Any) -> Any:
        if value != self.supported:
            raise PydanticCustomError("unsupported", "only {done} is supported", {"done": json.dumps(self.supported)})
        return value


def only_value(supported: Any) -> OnlyValue:
    """Return an annotation that accepts a single supported value and refuses others as unsupported, not invalid."""
    return OnlyValue(supported)


FalseOnly = Annotated[bool, only_value(False)]
EmptyList = Annotated[list[Any], only_value([])]


Schema = TypeVar("Schema", bound=Strict)


def parse(schema: type[Schema], body: bytes) -> Schema:
    """Return `body` as `schema`. Raises `ApiError` (400) that names the first field that is wrong."""
    return validate(schema, decode_json(body))


def validate(schema: type[Schema], fields: Any) -> Schema:
    """Return decoded JSON as `schema`. Raises `ApiError` (400) that names the first field that is wrong."""
    try:
        requested = schema.model_validate(fields)
    except ValidationError as error:
        raise schema.api_error(error) from None
    requested.check()
    return requested


def refusal(error: ValidationError, is_tagged: bool = False, has_brackets: bool = False) -> ApiError:
    """Return the first problem of a validation as an error for the client.

    is_tagged: the schema is one of several that a tag selects; the parameter is then the whole path after the tag
    instead of its first field. has_brackets: the parameter is the whole path, with indexes in brackets.
    """
    kind, path, message = _problem(error)
    path = path[1:] if is_tagged else path
    where = _bracketed(path) if has_brackets else ".".join(map(str, path))
    param = (where if is_tagged or has_brackets else str(path[0])) if path else None
    if kind in ("extra_forbidden", "none_required", "unsupported"):
        more = f", {message}" if kind == "unsupported" else _hint(str(path[-1]))
        return ApiError(400, f"unsupported parameter: {where}{more}", param=param, code="unsupported_parameter")
    return ApiError(400, f"{where}: {message}" if path else message, param=param, code="invalid_value")


# Names of other servers' parameters, and what to use here.
HINTS = {
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "enable_thinking": 'chat_template_kwargs, such as {"enable_thinking": false}',
    "think": "reasoning_effort",
    "thinking": "reasoning_effort",
    "reasoning": "reasoning_effort",
    "thinking_budget": "thinking_token_budget",
    "grammar": 'structured_outputs, such as {"grammar": ...}',
    "json_schema": "response_format",
    "guided_json": 'structured_outputs, such as {"json": ...}',
    "guided_regex": 'structured_outputs, such as {"regex": ...}',
    "guided_choice": 'structured_outputs, such as {"choice": ...}',
    "guided_grammar": 'structured_outputs, such as {"grammar": ...}',
    "functions": "tools",
    "function_call": "tool_choice",
    "system": "a message with the role system",
    "num_ctx": "the server's option --max-model-len",
}


def _hint(name: str) -> str:
    """Return what to use instead of an unknown field, if that is known."""
    return f"; use {HINTS[name]}" if name in HINTS else ""


def _bracketed(path: Sequence[int | str]) -> str:
    """Return a path as OpenAI writes it, such as `input[3].content[0].text`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _problem(error: ValidationError) -> tuple[str, list[int | str], str]:
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
    parts = [part if isinstance(part, int) else part[:MAX_NAME_CHARACTERS] for part in (*known, *unknown)]
    return nearest["type"], parts, nearest["msg"]


def _is_alternative(part: int | str) -> bool:
    """Return whether a part of a path is one of several alternative types of a field rather than a field."""
    return isinstance(part, str) and ("[" in part or part.startswith("constrained-") or part in ("str", "int"))
