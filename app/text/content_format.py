"""Format that an answer must have, and the grammar that enforces it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from app.text.schemas.errors import InvalidFormat
from app.text.schemas.json_grammar import json_value
from app.text.tools.grammar_rules import GrammarRules, any_of, literal

__all__ = ["MAX_CHOICES", "MAX_FORMAT_CHARACTERS", "ContentFormat", "InvalidFormat"]

MAX_FORMAT_CHARACTERS = 1 << 18  # of a schema as JSON, a pattern, choices or a grammar
MAX_CHOICES = 1024
SCHEMA_GRAMMAR, USER_GRAMMAR = "schema", "user"
# A client that did not ask for strictness gets arrays whose items may repeat, if that cannot be enforced.
_LENIENT_KEYWORDS = ("uniqueItems",)
_ESCAPED = re.compile(r"\\?\n|\\.|/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ContentFormat:
    """Constraint on the content of an answer; reasoning before it is free.

    kind and value: `json_schema` with a schema (a dict or a bool), `regex` with a pattern that matches the whole
    content, `choice` with a list of texts, or `grammar` with a grammar in Lark's syntax. param: the protocol's name of
    the parameter, for errors. is_strict: `uniqueItems` of a schema is an error too if it cannot be enforced; all other
    keywords always are.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    value: Any
    param: str
    is_strict: bool = True

    @property
    def grammars(self) -> dict[str, str]:
        """Return the grammars by name to which the expression refers, in Lark's syntax. Raises `InvalidFormat`."""
        if self.kind == "grammar":
            return {USER_GRAMMAR: self.value}
        return {SCHEMA_GRAMMAR: self._schema_grammar()} if self.kind == "json_schema" else {}

    def mentions(self, text: str) -> bool:
        """Return whether the content may begin with `text` because the format names it."""
        if self.kind == "choice":
            return any(each.startswith(text) for each in self.value)
        return self.kind in ("regex", "grammar") and text in self.value.replace("\\", "")

    def expression(self) -> str:
        """Return the content as an expression in llguidance's variant of Lark. Raises `InvalidFormat`."""
        match self.kind:
            case "json_schema":
                return f"@{SCHEMA_GRAMMAR}"  # a grammar of its own, since it has rules
            case "regex":
                self._check_size(len(self.value))
                return f"/{escaped_pattern(self.value)}/"
            case "choice":
                self._check_size(sum(map(len, self.value)))
                if not 1 <= len(self.value) <= MAX_CHOICES:
                    message = f"it must have 1 to {MAX_CHOICES} texts, got {len(self.value)}"
                    raise InvalidFormat(message, param=self.param)
                return any_of(map(literal, self.value))
            case "grammar":
                self._check_size(len(self.value))
                return f"@{USER_GRAMMAR}"

    def _schema_grammar(self) -> str:
        self._check_size(len(json.dumps(self.value)))
        rules = GrammarRules()
        try:
            lenient = () if self.is_strict else _LENIENT_KEYWORDS
            rules.add("start", json_value(rules, self.value, is_strict=True, lenient=lenient))
        except InvalidFormat as error:
            raise InvalidFormat(str(error), param=self.param) from None
        return str(rules)

    def _check_size(self, size: int) -> None:
        if size > MAX_FORMAT_CHARACTERS:
            message = f"it may have at most {MAX_FORMAT_CHARACTERS} characters, got {size}"
            raise InvalidFormat(message, param=self.param)


def escaped_pattern(pattern: str) -> str:
    """Return a regular expression for use between slashes: with escaped slashes, and in one line."""
    return _ESCAPED.sub(_escape, pattern)


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    return "\\n" if text.endswith("\n") else "\\/" if text == "/" else text
