"""Tools of a request in OpenAI's format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.protocols.hosted_tools import (
    FUNCTIONS_ONLY,
    HOSTED_TAG,
    HostedTool,
    check_callable,
    hosted_types,
    is_hosted,
    tool_tag,
)
from app.protocols.schema import Strict, max_fields
from app.protocols.typed_objects import supported_types, tag_of
from app.text.tools.definitions import Tool, ToolUse

MAX_TOOLS = 1024
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.:-]+$")]
Parameters = Annotated[dict[str, Any], max_fields(4096)]


def template_arguments(text: str) -> Any:
    """Return the arguments of a call as an object, as chat templates read them; text that is not a JSON object, such as
    that of an answer that was cut, as it is.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


class Function(Strict):
    """Function that the model may call. parameters: a JSON Schema of the arguments."""

    name: ToolName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    """Tool of the client."""

    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        """Return the tool."""
        function = self.function
        return Tool(function.name, function.description or "", function.parameters or {}, bool(function.strict))


class ToolReference(Strict):
    """Name of a tool."""

    name: str


class NamedTool(Strict):
    """Choice of one tool."""

    type: Literal["function"]
    function: ToolReference


def _reference_tag(value: Any) -> str:
    return HOSTED_TAG if is_hosted(value) else "[function]"


class AllowedTools(Strict):
    """Choice among some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[
            Annotated[
                Annotated[NamedTool, Tag("[function]")] | Annotated[HostedTool, Tag(HOSTED_TAG)],
                Discriminator(_reference_tag),
            ]
        ],
        Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS),
    ]


class AllowedToolsChoice(Strict):
    """Choice among some of the tools, in OpenAI's newer form."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("[function]")] | Annotated[HostedTool, Tag(HOSTED_TAG)],
    Discriminator(tool_tag),
    supported_types("function", advice=FUNCTIONS_ONLY, accepts=is_hosted),
]
Tools = Annotated[list[AnyTool], Field(fail_fast=True, max_length=MAX_TOOLS)]


def choice_tag(value: Any) -> str:
    """Return the tag of the schema for a choice among tools."""
    return "[mode]" if isinstance(value, str) else tag_of(value)


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("[mode]")]
    | Annotated[NamedTool, Tag("[function]")]
    | Annotated[AllowedToolsChoice, Tag("[allowed_tools]")],
    Discriminator(choice_tag),
    supported_types("function", "allowed_tools", advice=FUNCTIONS_ONLY, allows_text=True),
]


def callable_choice(tools: Sequence[Tool], hosted: Sequence[str], choice: ToolChoice | None) -> ToolChoice | None:
    """Return a choice without hosted tools. Raises `ApiError` if it requires a call of one.

    tools: the functions of the request. hosted: the types of its other tools.
    """
    if not isinstance(choice, AllowedToolsChoice):
        if choice == "required":
            check_callable(bool(tools), hosted, "tool_choice")
        return choice
    allowed = choice.allowed_tools
    functions = [tool for tool in allowed.tools if isinstance(tool, NamedTool)]
    if allowed.mode == "required":
        check_callable(bool(functions), hosted_types(allowed.tools), "tool_choice")
    if not functions:
        return "none"
    return choice.model_copy(update={"allowed_tools": allowed.model_copy(update={"tools": functions})})


def tool_use(tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool | None) -> ToolUse | None:
    """Return the tools that an answer may call, if any. Raises `ApiError` for a choice that names no tool.

    parallel: as in `ToolUse`.
    """
    if isinstance(choice, AllowedToolsChoice):
        references = choice.allowed_tools.tools
        names = {reference.function.name for reference in references if isinstance(reference, NamedTool)}
        for name in names:
            _check_name(name, tools)
        tools = [tool for tool in tools if tool.name in names]
        choice = choice.allowed_tools.mode
    counts = Counter(tool.name for tool in tools)
    if len(counts) < len(tools):
        [(name, _)] = counts.most_common(1)
        raise ApiError(400, f"tools: two tools have the name {name!r}", param="tools", code="invalid_value")
    if isinstance(choice, NamedTool):
        _check_name(choice.function.name, tools)
        return ToolUse(tuple(tools), "required", choice.function.name, parallel=False)
    if choice == "required" and not tools:
        raise ApiError(400, "tool_choice required needs tools", param="tool_choice", code="invalid_value")
    return ToolUse(tuple(tools), choice or "auto", parallel=parallel) if tools and choice != "none" else None


def _check_name(name: str, tools: Sequence[Tool]) -> None:
    if all(tool.name != name for tool in tools):
        raise ApiError(400, f"tool_choice: there is no tool {name[:80]!r}", param="tool_choice", code="invalid_value")
