"""Tools and the choice among them, independent of protocols and model families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

MAX_FORCED_CALLS = 8  # of an answer that must have calls, unless it has more tools


@dataclass(frozen=True, slots=True)
class Tool:
    """Function that a client offers. parameters: the JSON Schema of its arguments, an object.

    strict: the arguments of every call must satisfy `parameters`, also where the model is free to call or not.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False

    def template_form(self) -> dict[str, Any]:
        """Return the tool as chat templates read it, in the format of OpenAI's chat completions."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of a request, and which of them an answer calls.

    choice: auto leaves it to the model; none: no call; required: at least one call. name: with required, the tool that
    is called. parallel: whether an answer may have more than one call; None: the request does not say.
    """

    tools: tuple[Tool, ...]
    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool | None = None

    @property
    def allows_several(self) -> bool:
        """Return whether an answer may have more than one call. An answer that must have a call has only one unless the
        request asks for more, since small models would go on with further calls until the limit.
        """
        return self.choice != "required" if self.parallel is None else self.parallel


@dataclass(frozen=True)
class ToolOffer:
    """Tools that an answer may call. constrains_all: the arguments of all tools satisfy their schemas."""

    use: ToolUse
    constrains_all: bool = False

    @property
    def is_forced(self) -> bool:
        """Return whether the answer must have a call."""
        return self.use.choice == "required"

    @property
    def max_forced_calls(self) -> int:
        """Return the number of calls after which an answer ends that must have calls; 0 for others."""
        return max(MAX_FORCED_CALLS, len(self.tools)) if self.is_forced else 0

    @cached_property
    def tools(self) -> Sequence[Tool]:
        """Return the tools that may be called."""
        tools = [tool for tool in self.use.tools if self.use.name in (None, tool.name)]
        assert tools, f"no tool is named {self.use.name}"
        return tools

    def is_constrained(self, tool: Tool) -> bool:
        """Return whether the arguments of a tool must satisfy its schema."""
        return tool.strict or self.constrains_all or self.is_forced
