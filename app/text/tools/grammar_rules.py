"""Building of a grammar in llguidance's variant of Lark: rules, markers, free text, and JSON by a schema.

Only text is built here; the engine process compiles it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.text.tools.definitions import Tool

# White space inside of JSON, at most once in a place: a space, or a line break with indentation. Models that may write
# any white space sometimes write nothing else.
JSON_SPACE = r"( |\n {0,32})"
# Letters after a backslash. With \\uXXXX a text has several forms, and a property could be repeated in another form,
# with a value that its schema does not allow.
ESCAPES = 'nrbtf\\"'
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class GrammarRules:
    """Rules of one grammar.

    special_tokens: ids of the tokenizer's special tokens by text. Free text cannot contain them; other markers are
    matched as text.
    """

    def __init__(self, special_tokens: Mapping[str, int], *, constrains_arguments: bool) -> None:
        """constrains_arguments: the schema of all tools holds for their arguments, not only that of strict tools."""
        self._special_tokens = special_tokens
        self._constrains_arguments = constrains_arguments
        self._lines = {"text": "text: /(?s:.+)/"}  # by the name of the rule
        self._shared: dict[tuple[int, str], str] = {}  # names of rules for referenced schemas

    def __str__(self) -> str:
        return "\n".join(self._lines.values()) + "\n"

    def add(self, name: str, body: str) -> str:
        """Add a rule, unless there is one of this name. Return its name."""
        self._lines.setdefault(name, f"{name}: {body}")
        return name

    def add_shared(self, root: dict[str, Any], reference: str, write: Callable[[], str]) -> str:
        """Add a rule for the schema at a reference into `root`, unless there is one; it may refer to itself. Return its
        name. write: returns the body.
        """
        key = id(root), reference
        if key not in self._shared:
            name = self._shared[key] = f"shared_{len(self._shared)}"
            self._lines[name] = f"{name}: {write()}"
        return self._shared[key]

    def add_separated(self, items: Iterable[tuple[str, bool]], separator: str) -> str:
        """Return an expression for items in order with `separator` between them.

        items: expression, and whether it is required; others may be missing. separator: an expression.
        """
        beginnings: list[str] = []  # the list from each item on that may be its first
        following, is_required = "", False
        for item, must_be_present in reversed(list(items)):
            if must_be_present:
                beginnings, is_required = [], True
            beginnings.append(f"{item} {following}")
            body = f"{separator} {item}" if must_be_present else f"({separator} {item})?"
            following = self.add(f"part_{len(self._lines)}", f"{body} {following}")
        return f"{any_of(beginnings)}{'' if is_required else '?'}" if beginnings else '""'

    def add_lazy(self, name: str, body: str) -> str:
        """Add a rule for a terminal that ends as early as it matches. Return its name."""
        terminal = f"{name.upper()}_TERMINAL"
        self._lines.setdefault(terminal, f"{terminal}: {body}")
        self._lines.setdefault(name, f"{name}[lazy]: {terminal}")
        return name

    def is_special(self, text: str) -> bool:
        """Return whether a text is a special token."""
        return text in self._special_tokens

    def marker(self, text: str) -> str:
        """Return an expression for a text that may be a special token."""
        return f"<[{self._special_tokens[text]}]>" if self.is_special(text) else literal(text)

    def until(self, name: str, end: str) -> str:
        """Return an expression for free text up to and including the marker `end`. name: for the rule."""
        if self.is_special(end):
            return f"text? {self.marker(end)}"
        return self.add_lazy(name, f"/(?s:.*)/ {literal(end)}")

    def is_constrained(self, tool: Tool) -> bool:
        """Return whether the arguments of a tool must satisfy its schema."""
        return tool.strict or self._constrains_arguments

    def json_arguments(self, tool: Tool) -> str:
        """Return an expression for the arguments of a call as a JSON object."""
        schema = parameters_of(tool) if self.is_constrained(tool) else {"type": "object"}
        return json_value(schema, is_strict=tool.strict)


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments; without parameters it has none."""
    return {"type": "object"} | tool.parameters if tool.parameters else NO_PARAMETERS


def json_value(schema: dict[str, Any], *, is_strict: bool) -> str:
    """Return an expression for JSON by a schema. is_strict: keywords that cannot be enforced are errors."""
    options = {"whitespace_pattern": JSON_SPACE, "json_allowed_escapes": ESCAPES, "lenient": not is_strict}
    return "%json " + json.dumps(schema | {"x-guidance": options}, ensure_ascii=False)


def literal(text: str) -> str:
    """Return an expression for exactly `text`."""
    return json.dumps(text, ensure_ascii=False)


def any_of(expressions: Iterable[str]) -> str:
    """Return an expression for one of several."""
    return f"({' | '.join(expressions)})"
