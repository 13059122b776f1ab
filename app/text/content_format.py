"""Format that an answer must have, and the grammar that enforces it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from app.text.tools.grammar_rules import any_of, json_value, literal

MAX_FORMAT_CHARACTERS = 1 << 18  # of a schema as JSON, a pattern, choices or a grammar
MAX_CHOICES = 1024
USER_GRAMMAR = "user"
_CONTROL_CHARACTER = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]")  # in JSON, except those with a short escape
_ESCAPED = re.compile(r"\\?\n|\\.|/", re.DOTALL)


class InvalidFormat(Exception):
    """A format cannot be enforced; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class ContentFormat:
    """Constraint on the content of an answer; reasoning before it is free.

    kind and value: `json_schema` with a schema (a dict or a bool), `regex` with a pattern that matches the whole
    content, `choice` with a list of texts, or `grammar` with a grammar in Lark's syntax. param: the protocol's name of
    the parameter, for errors.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    value: Any
    param: str

    @property
    def grammars(self) -> dict[str, str]:
        """Return the grammars by name to which the expression refers, in Lark's syntax."""
        return {USER_GRAMMAR: self.value} if self.kind == "grammar" else {}

    def mentions(self, text: str) -> bool:
        """Return whether the content may begin with `text` because the format names it."""
        if self.kind == "choice":
            return any(each.startswith(text) for each in self.value)
        return self.kind in ("regex", "grammar") and text in self.value.replace("\\", "")

    def expression(self) -> str:
        """Return the content as an expression in llguidance's variant of Lark. Raises `InvalidFormat`."""
        match self.kind:
            case "json_schema":
                # The schema is written once, since it may be large.
                expression = json_value(checked_schema(self.value), is_strict=True)
                _check_size(len(expression))
                # A text with one can be written with \uXXXX only, which is not allowed; llguidance would leave it out.
                if _CONTROL_CHARACTER.search(expression):
                    raise InvalidFormat("control characters in a schema are not supported; remove them")
                return expression
            case "regex":
                _check_size(len(self.value))
                return f"/{escaped_pattern(self.value)}/"
            case "choice":
                _check_size(sum(map(len, self.value)))
                if not 1 <= len(self.value) <= MAX_CHOICES:
                    raise InvalidFormat(f"it must have 1 to {MAX_CHOICES} texts, got {len(self.value)}")
                return any_of(map(literal, self.value))
            case "grammar":
                _check_size(len(self.value))
                return f"@{USER_GRAMMAR}"


def _check_size(size: int) -> None:
    if size > MAX_FORMAT_CHARACTERS:
        raise InvalidFormat(f"it may have at most {MAX_FORMAT_CHARACTERS} characters, got {size}")


def checked_schema(schema: Any) -> dict[str, Any]:
    """Return a schema as an object. Raises `InvalidFormat`."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise InvalidFormat("a JSON Schema must be an object or true")
    if "x-guidance" in schema:
        raise InvalidFormat("the keyword x-guidance is not supported; remove it")
    return schema


def escaped_pattern(pattern: str) -> str:
    """Return a regular expression for use between slashes: with escaped slashes, and in one line."""
    return _ESCAPED.sub(_escape, pattern)


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    return "\\n" if text.endswith("\n") else "\\/" if text == "/" else text
