"""Recorded and constructed outputs of models, with the expected content, reasoning and calls."""

from __future__ import annotations

from dataclasses import dataclass

from app.text.tools.definitions import Tool

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"}},
    "required": ["city"],
}
NOTE = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "done": {"type": "boolean"},
        "level": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "due": {"type": ["string", "null"]},
        "kind": {"enum": ["home", "work"]},
        "color": {"$ref": "#/$defs/Color"},
        "extra": {},
    },
    "$defs": {"Color": {"type": "string"}},
}
ADD = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}
TOOLS = (
    Tool("get_weather", "Return the weather forecast.", WEATHER),
    Tool("add", "Add two numbers.", ADD),
    Tool("note", "Save a note.", NOTE),
    Tool("run", "Run a program.", {"type": "object", "properties": {"code": {"type": "string"}}}),
    Tool("ping", "Check the connection."),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Output of a model.

    calls: name and arguments of each. is_valid: whether the grammar of the format accepts the output; None if it does
    not matter.
    """

    kind: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    is_open: bool = False  # the prompt ends with the beginning of reasoning
    parallel: bool = True
    has_tools: bool = True
    is_valid: bool | None = None
