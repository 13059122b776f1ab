"""Tools and the choice among them in requests of `/v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from app.errors import ApiError
from app.protocols.responses_input import supported_types, tag_of
from app.protocols.schema import FalseOnly, Strict, only_value
from app.text.tools.definitions import Tool, ToolUse

MAX_TOOLS = 1024

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
FUNCTIONS_ONLY = "the server has no built-in tools, but a client can offer them as functions"


class FunctionTool(Strict):
    """Function that the answer may call. parameters: JSON Schema of its arguments."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: Annotated[list[str], only_value(["direct"])] | None = None
    defer_loading: FalseOnly | None = None
    async_: FalseOnly | None = Field(None, alias="async")

    @property
    def definition(self) -> Tool:
        """Return the tool independent of protocols."""
        return Tool(self.name, self.description or "", self.parameters or {}, bool(self.strict))

    def view(self) -> dict[str, Any]:
        """Return the tool as a response repeats it."""
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", **fields, "strict": bool(self.strict)}


FunctionTools = Annotated[
    list[Annotated[FunctionTool, supported_types("function", advice=FUNCTIONS_ONLY)]],
    Field(fail_fast=True, max_length=MAX_TOOLS),
]


class FunctionChoice(Strict):
    """Choice of one function, which the answer must call; also an entry of `AllowedTools`."""

    type: Literal["function"]
    name: ToolName


class AllowedTools(Strict):
    """Choice of some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[FunctionChoice, supported_types("function", advice=FUNCTIONS_ONLY)]],
        Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS),
    ]


def _choice_tag(value: Any) -> str:
    return "[mode]" if isinstance(value, str) else tag_of(value)


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("[mode]")]
    | Annotated[FunctionChoice, Tag("[function]")]
    | Annotated[AllowedTools, Tag("[allowed_tools]")],
    Discriminator(_choice_tag),
    supported_types("function", "allowed_tools", advice=FUNCTIONS_ONLY, allows_text=True),
]


def tool_use(tools: list[FunctionTool], choice: ToolChoice, parallel: bool) -> ToolUse | None:
    """Return the tools of a request and the choice among them; None if it has no tools.

    parallel: an answer may have more than one call. Raises `ApiError` (400) for two tools of one name, and for a choice
    of tools that the request does not have.
    """
    by_name: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        if tool.name in by_name:
            raise _refused(f"tools[{index}].name", f"an earlier tool has the name {tool.name!r} too")
        by_name[tool.name] = tool.definition
    match choice:
        case FunctionChoice(name=name):
            _check_known(by_name, name, "tool_choice.name")
            return ToolUse(tuple(by_name.values()), "required", name, parallel)
        case AllowedTools(mode=mode, tools=allowed):
            for index, entry in enumerate(allowed):
                _check_known(by_name, entry.name, f"tool_choice.tools[{index}].name")
            names = {entry.name for entry in allowed}
            return ToolUse(tuple(by_name[name] for name in by_name if name in names), mode, None, parallel)
    if choice == "required" and not by_name:
        raise _refused("tool_choice", "'required' needs at least one tool in tools")
    return ToolUse(tuple(by_name.values()), choice, None, parallel) if by_name else None


def _check_known(tools: dict[str, Tool], name: str, where: str) -> None:
    if name not in tools:
        raise _refused(where, f"no tool in tools has the name {name!r}")


def _refused(where: str, message: str) -> ApiError:
    return ApiError(400, f"{where}: {message}", param=where, code="invalid_value")
