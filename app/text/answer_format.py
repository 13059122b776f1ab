"""Format that an answer must have, and the grammar that enforces it."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from app.text.output_parser import THINK_TAGS, Tags

# At each place where JSON allows white space; without a bound a small model may write blanks until the length limit.
WHITE_SPACE = "[ \\n\\t]{0,40}"
MAX_FORMAT_CHARACTERS = 1 << 18  # of a schema, pattern or grammar, as JSON
MAX_CHOICES = 1024


class InvalidFormat(Exception):
    """A format cannot be enforced; the message gives the reason."""


class Reasoning(enum.Enum):
    """Reasoning before the content of an answer."""

    NEVER = enum.auto()
    OPEN = enum.auto()  # the prompt ends with an open block
    POSSIBLE = enum.auto()  # the answer may begin with a block


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Constraint on the content of an answer; reasoning before it is free.

    kind and value: `json_schema` with a schema (a dict or a bool), `regex` with a pattern that matches the whole
    content, `choice` with a list of texts, or `grammar` with a grammar in Lark's syntax. param: the protocol's name of
    the parameter, for errors.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    value: Any
    param: str

    def grammar(self, reasoning: Reasoning, tags: Tags = THINK_TAGS) -> str:
        """Return the format in the form of `engine.constraints.grammars`. Raises `InvalidFormat`.

        tags: around reasoning.
        """
        size = len(self.value) if isinstance(self.value, str) else len(json.dumps(self.value))
        if size > MAX_FORMAT_CHARACTERS:
            raise InvalidFormat(f"it may have at most {MAX_FORMAT_CHARACTERS} characters, got {size}")
        content = self._content()
        grammars: list[dict[str, str]] = []
        if self.kind == "grammar":
            grammars.append({"name": "user", "lark_grammar": self.value})
        start = {Reasoning.NEVER: "content", Reasoning.OPEN: "rest content", Reasoning.POSSIBLE: "block? content"}
        rules = [f"start: {start[reasoning]}", f"content: {content}"]
        if reasoning is not Reasoning.NEVER:
            rules += [f"block: {json.dumps(tags.open)} rest", "rest: close GAP?", "GAP: /[ \\n]{1,8}/"]
            rules += [f"close[lazy]: /(.|\\n)*{escaped_pattern(re.escape(tags.close))}/"]
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *grammars]}, ensure_ascii=False)

    def _content(self) -> str:
        """Return the right-hand side of the content's rule. Raises `InvalidFormat`."""
        match self.kind:
            case "json_schema":
                return f"%json {json.dumps(json_schema(self.value), ensure_ascii=False)}"
            case "regex":
                return f"/{escaped_pattern(self.value)}/"
            case "choice":
                if not 1 <= len(self.value) <= MAX_CHOICES:
                    raise InvalidFormat(f"it must have 1 to {MAX_CHOICES} texts, got {len(self.value)}")
                return " | ".join(json.dumps(text, ensure_ascii=False) for text in self.value)
            case "grammar":
                return "@user"


def json_schema(schema: Any) -> dict[str, Any]:
    """Return a schema with bounded white space. Raises `InvalidFormat`."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidFormat("a JSON Schema must be an object or true")
    if "x-guidance" in schema:
        raise InvalidFormat("the keyword x-guidance is not supported; remove it")
    return {**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}


def escaped_pattern(pattern: str) -> str:
    """Return a regular expression for use between slashes: with escaped slashes, and in one line."""
    escaped, is_escaped = [], False
    for character in pattern:
        if character == "\n":
            escaped.append("n" if is_escaped else "\\n")
        elif character == "/" and not is_escaped:
            escaped.append("\\/")
        else:
            escaped.append(character)
        is_escaped = character == "\\" and not is_escaped
    return "".join(escaped)
