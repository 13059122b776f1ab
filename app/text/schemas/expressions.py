"""Parts of a grammar in llguidance's variant of Lark: names of rules, texts, and JSON that llguidance translates."""

from __future__ import annotations

import hashlib
import json
from typing import Protocol

from app.text.schemas.nodes import Node

# White space inside of JSON. Models that may write any white space sometimes write nothing else.
JSON_SPACE = r"( |\n {0,32})"
# Letters after a backslash. With \\uXXXX a text has several forms, and a property could be repeated in another form,
# with a value that its schema does not allow.
ESCAPES = 'nrbtf\\"'
OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": f",{JSON_SPACE}?",
    "key_separator": f":{JSON_SPACE}?",
    "json_allowed_escapes": ESCAPES,
}


class Rules(Protocol):
    """Rules of a grammar, to which others are added."""

    def add(self, name: str, body: str) -> str:
        """Add a rule, unless there is one of this name. Return its name."""


def literal(text: str) -> str:
    """Return an expression for exactly `text`."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def add_named(rules: Rules, kind: str, body: str) -> str:
    """Add a rule with a name that depends on its body only. Return the name; upper-case kinds are terminals."""
    suffix = digest(body)
    return rules.add(f"{kind}_{suffix.upper() if kind.isupper() else suffix}", body)


def digest(text: str) -> str:
    """Return a short name for a text."""
    return hashlib.blake2s(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def embedded_json(schema: Node, *, is_strict: bool = True) -> str:
    """Return an expression of a schema that llguidance translates."""
    options = {**OPTIONS, "lenient": not is_strict}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def repeated(expression: str, minimum: int, maximum: int | None) -> str:
    """Return an expression for a number of repetitions."""
    if maximum is None:
        return f"({expression}){f'{{{minimum},}}' if minimum else '*'}"
    return f"({expression}){{{minimum},{maximum}}}" if maximum else ""
