"""Hosted tools: those that the server of a protocol defines and runs, such as a search of the web. Here are none.

A request that merely offers them is answered without them, and the answer names them in a header. A request that needs
one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from app.errors import ApiError
from app.protocols.schema import Lenient, Strict
from app.protocols.typed_objects import tag_of

IGNORED_TOOLS_HEADER = "X-Carousel-Ignored-Tools"
FUNCTIONS_ONLY = "the server has no built-in tools, but a client can offer them as functions"
HOSTED_TAG = "[hosted]"
MAX_NAMED = 16  # types in a header, a log line or an error

# A tool with a definition is the client's own, and one of the first types has one; any other is the server's.
_CLIENT_TYPES = ("function", "custom", "namespace")
_DEFINITION_FIELDS = ("function", "parameters", "input_schema")
_HOSTED_DEFINITION = "builtin_function"  # of Moonshot's API, which names its tools by a function
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")  # can stand in a header


class HostedTool(Lenient):
    """Tool that another server runs, with any further fields."""

    type: Annotated[str, Field(json_schema_extra={"not": {"enum": [*_CLIENT_TYPES]}})]
    name: str | None = None


def is_hosted(value: Any) -> bool:
    """Return whether an entry of `tools` is a hosted tool, in any protocol."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in _CLIENT_TYPES or _TYPE.fullmatch(kind) is None:
        return False
    return kind == _HOSTED_DEFINITION or not any(name in value for name in _DEFINITION_FIELDS)


def tool_tag(value: Any) -> str:
    """Return the tag of the schema for an entry of `tools`, given or parsed, which is the same for all hosted tools."""
    if isinstance(value, Strict):  # when it is written again
        return HOSTED_TAG if isinstance(value, HostedTool) else f"[{getattr(value, 'type', '')}]"
    return HOSTED_TAG if is_hosted(value) else tag_of(value)


def hosted_types(tools: Iterable[Any] | None) -> tuple[str, ...]:
    """Return the types of the hosted ones among tools, each once."""
    return tuple(dict.fromkeys(tool.type for tool in tools or () if isinstance(tool, HostedTool)))


def listed(types: Sequence[str]) -> str:
    """Return types as one text, without those after the first `MAX_NAMED`."""
    return ", ".join([*types[:MAX_NAMED], *(["..."] if len(types) > MAX_NAMED else [])])


def check_callable(has_functions: bool, hosted: Sequence[str], param: str) -> None:
    """Raise `ApiError` (400) for a required call if all tools among which the answer must choose are hosted.

    hosted: their types. param: the parameter that requires the call.
    """
    if hosted and not has_functions:
        message = f"{param} requires a call, but this server does not run the tools {listed(hosted)}; {FUNCTIONS_ONLY}"
        raise ApiError(400, message, param=param, code="unsupported_parameter")


def _check_callers(callers: list[str]) -> list[str]:
    if "direct" not in callers:
        raise PydanticCustomError("unsupported", 'it must include "direct", because no hosted tool calls functions')
    return callers


# Validator of `allowed_callers`: hosted tools call none, but the model may call the function too.
includes_direct = AfterValidator(_check_callers)
