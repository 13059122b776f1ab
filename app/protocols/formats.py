"""Formats of answers: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.errors import ApiError
from app.protocols.schema import Strict, Unsupported, max_fields
from app.text.content_format import MAX_CHOICES, MAX_FORMAT_CHARACTERS, ContentFormat

Schema = Annotated[dict[str, Any], max_fields(4096)] | bool
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_FORMAT_CHARACTERS)]


class JsonSchema(Strict):
    """`json_schema` of a response format. A schema is enforced whether or not `strict` is set, except `uniqueItems`."""

    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """`response_format` of `/v1/chat/completions` and `/v1/completions`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def content_format(self) -> ContentFormat | None:
        """Return the format. Raises `ApiError` (400) without a schema where there must be one."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return ContentFormat("json_schema", {"type": "object"}, "response_format")
        form = self.json_schema
        if form is None or form.schema_ is None:
            raise ApiError(
                400,
                "response_format of type json_schema needs json_schema.schema",
                param="response_format",
                code="invalid_value",
            )
        return ContentFormat("json_schema", form.schema_, "response_format", is_strict=form.strict is True)


class StructuredOutputs(Strict):
    """`structured_outputs`, in which exactly one format is set.

    json: a schema. choice: the possible answers. grammar: in Lark's syntax as llguidance extends it.
    """

    json_: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: Pattern | None = None
    structural_tag: Unsupported = None
    disable_fallback: bool | None = None  # there is none
    disable_any_whitespace: Unsupported = None
    disable_additional_properties: Unsupported = None
    whitespace_pattern: Unsupported = None

    def content_format(self) -> ContentFormat:
        """Return the format. Raises `ApiError` (400) unless exactly one is set."""
        param = "structured_outputs"
        given = {
            "json_schema": self.json_ if self.json_ is not None else {"type": "object"} if self.json_object else None,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
        }
        formats = [ContentFormat(kind, value, param) for kind, value in given.items() if value is not None]  # type: ignore[arg-type]
        if len(formats) != 1:
            raise ApiError(
                400,
                f"structured_outputs must have exactly one of json, json_object, regex, choice and grammar, "
                f"got {len(formats)}",
                param=param,
                code="invalid_value",
            )
        return formats[0]
