"""Building of a grammar in llguidance's variant of Lark: rules, markers, free text, and JSON by a schema.

Only text is built here; the engine process compiles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from app.text.marks import NO_MARKS, Marks
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.expressions import literal
from app.text.schemas.json_grammar import json_value as add_json
from app.text.tools.definitions import Tool

__all__ = ["GrammarRules", "any_of", "literal", "naming"]


class GrammarRules:
    """Rules of one grammar. marks: special tokens that it refers to; free text cannot contain special tokens."""

    def __init__(self, marks: Marks = NO_MARKS) -> None:
        self.marks = marks
        self._lines = {"text": "text: /(?s:.+)/"}  # by the name of the rule
        self._shared: dict[tuple[int, str], str] = {}  # names of rules for referenced schemas

    def __str__(self) -> str:
        return "\n".join(self._lines.values()) + "\n"

    def has(self, name: str) -> bool:
        """Return whether there is a rule of this name."""
        return name in self._lines

    def add(self, name: str, body: str) -> str:
        """Add a rule, unless there is one of this name. Return its name."""
        self._lines.setdefault(name, f"{name}: {body}")
        return name

    def add_shared(self, root: dict[str, Any], reference: str, write: Callable[[], str]) -> str:
        """Add a rule for the schema with a name in `root`, unless there is one; it may refer to itself. Return the name
        of the rule. write: returns the body.
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

    def text(self, text: str) -> str:
        """Return an expression for a text, with the special tokens in it."""
        return self.marked(self.marks.encode(text))

    def marked(self, text: str) -> str:
        """Return an expression for a text with marks."""
        ids = self.marks.ids
        parts = (f"<[{ids[part]}]>" if part in ids else literal(part) for part in self.marks.split(text))
        return " ".join(parts) or '""'

    def until(self, name: str, end: str) -> str:
        """Return an expression for free text up to and including the marker `end`. name: for the rule."""
        if self.marks.encode(end) in self.marks.ids:
            return f"text? {self.text(end)}"
        return self.add_lazy(name, f"/(?s:.*)/ {literal(end)}")

    def json_value(self, schema: Any, *, is_strict: bool) -> str:
        """Return an expression for JSON by a schema. Raises `InvalidFormat` for keywords that cannot be enforced if
        `is_strict`.
        """
        return add_json(self, schema, is_strict=is_strict)


@contextmanager
def naming(tool: Tool, family: str) -> Iterator[None]:
    """Add the tool and the family of its calls to an `InvalidFormat`."""
    try:
        yield
    except InvalidFormat as error:
        message = f"the parameters of tool {tool.name}: {error} (calls in the format {family})"
        raise InvalidFormat(message, param="tools") from None


def any_of(expressions: Iterable[str]) -> str:
    """Return an expression for one of several."""
    return f"({' | '.join(expressions)})"
