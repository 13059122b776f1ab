"""Arguments that are written as one JSON object, and reading of JSON as it arrives."""

from __future__ import annotations

import re
from collections.abc import Callable

from app.text.schemas.nodes import Node
from app.text.tools.argument_schema import parameters_of
from app.text.tools.definitions import Tool
from app.text.tools.grammar_rules import GrammarRules
from app.text.tools.syntax import MAX_NAME, ArgumentSyntax, OpenCall
from app.text.tools.text_reader import Steps, TextReader

_OUTSIDE_STRINGS = re.compile(r'[^"{}\[\]]+')
_INSIDE_STRING = re.compile(r'[^"\\]+')
_ATOM = re.compile(r"[-+.0-9a-zA-Z]+")


class JsonArguments(ArgumentSyntax):
    """Arguments as a JSON object, which is passed on verbatim."""

    includes_end = False

    def schema(self, tool: Tool) -> Node:
        """Return the schema of a tool as it is given."""
        return parameters_of(tool)

    def expression(self, rules: GrammarRules, schema: Node | None, *, is_strict: bool) -> str:
        """Return an expression for JSON by a schema, or for any object. Raises `InvalidFormat`."""
        return rules.json_value({"type": "object"} if schema is None else schema, is_strict=is_strict)

    def read(self, call: OpenCall) -> Steps[bool]:
        """Read an object. Return whether it is complete."""
        return (yield from call.reader.peek()) == "{" and (yield from read_json(call.reader, call.put))


def read_json(reader: TextReader, put: Callable[[str], None]) -> Steps[bool]:
    """Read any value of JSON and pass its text to `put`. Return whether it is complete.

    Only strings and brackets are followed, since a grammar admits nothing but JSON.
    """
    begin = yield from reader.peek()
    if begin == '"':
        return (yield from _read_string(reader, put))
    if begin in ("{", "["):
        return (yield from _read_nested(reader, put))
    atom = yield from reader.read_while(_ATOM, MAX_NAME)
    put(atom)
    return 0 < len(atom) <= MAX_NAME and not (reader.is_ended and reader.is_empty)


def _read_nested(reader: TextReader, put: Callable[[str], None]) -> Steps[bool]:
    """Read an object or array."""
    depth = 0
    while True:
        put(reader.take_match(_OUTSIDE_STRINGS))
        begin = yield from reader.peek()
        if begin == '"':
            if not (yield from _read_string(reader, put)):
                return False
        elif begin:
            put(reader.take(1))
            depth += (begin in "{[") - (begin in "}]")
            if depth == 0:
                return True
        else:
            return False


def _read_string(reader: TextReader, put: Callable[[str], None]) -> Steps[bool]:
    """Read a string with its quotes."""
    put(reader.take(1))
    while True:
        put(reader.take_match(_INSIDE_STRING))
        begin = yield from reader.peek()
        if begin == "\\":
            begin = yield from reader.peek(2)
        put(reader.take(len(begin)))
        if begin in ('"', ""):
            return bool(begin)
