"""Tools and the choice among them, independent of protocols and model families."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


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
    is called. parallel: an answer may have more than one call.
    """

    tools: tuple[Tool, ...]
    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True
