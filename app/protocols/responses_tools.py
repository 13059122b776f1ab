"""Tools and the choice among them in requests of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.protocols.hosted_tools import (
    FUNCTIONS_ONLY,
    HOSTED_TAG,
    HostedTool,
    check_callable,
    hosted_types,
    includes_direct,
    is_hosted,
    tool_tag,
)
from app.protocols.responses_input import qualified_name
from app.protocols.schema import FalseOnly, Strict
from app.protocols.tools import MAX_TOOLS, Parameters, ToolName, choice_tag
from app.protocols.typed_objects import supported_types
from app.text.tools.definitions import Tool, ToolUse

MAX_NAME_LENGTH = 128  # characters of a name with its namespace


class FunctionTool(Strict):
    """Function that the answer may call. parameters: JSON Schema of its arguments."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None
    allowed_callers: Annotated[list[str], includes_direct] | None = None
    defer_loading: bool | None = None  # without effect: the model sees every function
    async_: FalseOnly | None = Field(None, alias="async")

    def definition(self, namespace: NamespaceTool | None = None) -> Tool:
        """Return the tool independent of protocols. namespace: the one that it belongs to."""
        description = self.description or ""
        if namespace is None:
            return Tool(self.name, description, self.parameters or {}, bool(self.strict))
        descriptions = [text for text in (namespace.description, description) if text]
        name = qualified_name(self.name, namespace.name)
        return Tool(name, "\n\n".join(descriptions), self.parameters or {}, bool(self.strict))

    def view(self) -> dict[str, Any]:
        """Return the tool as a response repeats it."""
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", **fields, "strict": bool(self.strict)}


class NamespaceTool(Strict):
    """Group of functions, each of which the model calls by the name of the group and its own."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[
        list[Annotated[FunctionTool, supported_types("function", advice=FUNCTIONS_ONLY)]],
        Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS),
    ]

    def view(self) -> dict[str, Any]:
        """Return the tool as a response repeats it."""
        tools = [tool.view() for tool in self.tools]
        return {"type": "namespace", "name": self.name, "description": self.description or "", "tools": tools}


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[NamespaceTool, Tag("[namespace]")]
    | Annotated[HostedTool, Tag(HOSTED_TAG)],
    Discriminator(tool_tag),
    supported_types("function", "namespace", advice=FUNCTIONS_ONLY, accepts=is_hosted),
]
Tools = Annotated[list[AnyTool], Field(fail_fast=True, max_length=MAX_TOOLS)]


class FunctionChoice(Strict):
    """Choice of one function, which the answer must call; also an entry of `AllowedTools`."""

    type: Literal["function"]
    name: ToolName


class AllowedTools(Strict):
    """Choice of some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionChoice, Tag("[function]")] | Annotated[HostedTool, Tag(HOSTED_TAG)],
                Discriminator(tool_tag),
                supported_types("function", advice=FUNCTIONS_ONLY, accepts=is_hosted),
            ]
        ],
        Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS),
    ]


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("[mode]")]
    | Annotated[FunctionChoice, Tag("[function]")]
    | Annotated[AllowedTools, Tag("[allowed_tools]")],
    Discriminator(choice_tag),
    supported_types("function", "allowed_tools", advice=FUNCTIONS_ONLY, allows_text=True),
]


def _functions(tools: Iterable[AnyTool]) -> Iterator[tuple[str, FunctionTool, NamespaceTool | None]]:
    """Yield all functions, each with its path in the request and its namespace."""
    for index, tool in enumerate(tools):
        match tool:
            case FunctionTool():
                yield f"tools[{index}]", tool, None
            case NamespaceTool(tools=inner):
                for at, function in enumerate(inner):
                    yield f"tools[{index}].tools[{at}]", function, tool


def names_in_namespaces(tools: Iterable[AnyTool]) -> dict[str, tuple[str, str]]:
    """Return namespace and name of functions by the names that the model calls."""
    found = ((namespace.name, function.name) for _, function, namespace in _functions(tools) if namespace is not None)
    return {qualified_name(name, namespace): (namespace, name) for namespace, name in found}


def tool_use(tools: Sequence[AnyTool], choice: ToolChoice, parallel: bool | None) -> ToolUse | None:
    """Return the tools of a request and the choice among them; None if it has no tools.

    parallel: as in `ToolUse`. Raises `ApiError` (400) for two tools of one name, and for a choice
    of tools that the request does not have.
    """
    by_name: dict[str, Tool] = {}
    for where, function, namespace in _functions(tools):
        tool = function.definition(namespace)
        if len(tool.name) > MAX_NAME_LENGTH:
            raise _refused(f"{where}.name", f"{tool.name!r} has more than {MAX_NAME_LENGTH} characters")
        if tool.name in by_name:
            raise _refused(f"{where}.name", f"an earlier tool has the name {tool.name!r} too")
        by_name[tool.name] = tool
    match choice:
        case FunctionChoice(name=name):
            _check_known(by_name, name, "tool_choice.name")
            return ToolUse(tuple(by_name.values()), "required", name, parallel)
        case AllowedTools(mode=mode, tools=allowed):
            names: set[str] = set()
            for index, entry in enumerate(allowed):
                if isinstance(entry, FunctionChoice):
                    _check_known(by_name, entry.name, f"tool_choice.tools[{index}].name")
                    names.add(entry.name)
            if mode == "required":
                check_callable(bool(names), hosted_types(allowed), "tool_choice")
            if not names:
                return None
            return ToolUse(tuple(by_name[name] for name in by_name if name in names), mode, None, parallel)
    if choice == "required":
        check_callable(bool(by_name), hosted_types(tools), "tool_choice")
        if not by_name:
            raise _refused("tool_choice", "'required' needs at least one tool in tools")
    return ToolUse(tuple(by_name.values()), choice, None, parallel) if by_name else None


def _check_known(tools: dict[str, Tool], name: str, where: str) -> None:
    if name not in tools:
        raise _refused(where, f"no tool in tools has the name {name!r}")


def _refused(where: str, message: str) -> ApiError:
    return ApiError(400, f"{where}: {message}", param=where, code="invalid_value")
