"""Arguments in Python's syntax, as Llama 3.2 and Llama 4 write them: f(a=1, b="x").

Values become JSON as they arrive: strings, numbers, True, False, None, lists and dictionaries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.text.tools.argument_types import escape, listed_values, referenced
from app.text.tools.definitions import Tool
from app.text.tools.grammar_rules import GrammarRules, any_of, literal, members, parameters_of
from app.text.tools.syntax import MAX_NAME, ArgumentSyntax, OpenCall
from app.text.tools.tagged_arguments import is_free
from app.text.tools.text_reader import Literals, Steps, TextReader

TERMINALS = {
    "string": r"""/"([^"\\\n]|\\[^\n])*"|'([^'\\\n]|\\[^\n])*'/""",
    "number": r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "integer": "/-?(0|[1-9][0-9]*)/",
    "boolean": '("True" | "False")',
    "null": '"None"',
}
ANY_NAME = "[a-zA-Z_][a-zA-Z0-9_]{0,63}"
SEPARATOR = ", "

_ANY_NAME = re.compile(r"\w+")
_ATOM = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CLOSING = {"[": "]", "{": "}"}
_INSIDE_STRING = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U00[0-9a-fA-F]{6})")
_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10}
_ESCAPES = {"'": "'", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000", "\n": ""} | {c: f"\\{c}" for c in '"\\nrtbf'}


@dataclass(frozen=True, slots=True)
class PythonArguments(ArgumentSyntax):
    """Keyword arguments. In constrained calls they are in the order of the schema, with values of its types."""

    def expression(self, rules: GrammarRules, tool: Tool, *, is_constrained: bool) -> str:
        """Return an expression for the arguments."""
        if is_free(tool, is_constrained=is_constrained):
            item = rules.add("argument", f'/{ANY_NAME}/ "=" {_any_value(rules)}')
            return f"({item} ({literal(SEPARATOR)} {item})*)?"
        schema = parameters_of(tool)
        return _members(rules, schema, schema, lambda name: literal(f"{name}="))

    def read(self, call: OpenCall) -> Steps[bool]:
        """Read the arguments and the end of the call. Return whether it is complete."""
        is_any = is_free(call.tool, is_constrained=call.is_constrained)
        names = {} if is_any else {f"{name}=": name for name in members(parameters_of(call.tool))}
        if (yield from call.reader.accept(Literals(call.ends))):
            call.put("{}")
            return True
        first, separators = True, Literals([SEPARATOR, *call.ends])
        while True:
            if is_any:
                name = yield from call.reader.read_while(_ANY_NAME, MAX_NAME)
                name = name if (yield from call.reader.accept(Literals(["="]))) else ""
            else:
                name = names.get((yield from call.reader.accept(Literals(names))), "")
            if not name:
                return False
            call.put(("{" if first else ", ") + json.dumps(name, ensure_ascii=False) + ": ")
            first = False
            if not (yield from read_value(call.reader, call.put)):
                return False
            found = yield from call.reader.accept(separators)
            if found != SEPARATOR:
                call.put("}" if found else "")
                return bool(found)


def read_value(reader: TextReader, put: Callable[[str], None]) -> Steps[bool]:
    """Read a literal of Python and pass it to `put` as JSON. Return whether it is complete."""
    closing: list[str] = []  # brackets that close the open ones
    before = "["  # the token before the next one; "," is written with the value after it
    while True:
        begin = yield from reader.skip_space()
        if before == "value" and (begin == "," or (begin == ":" and closing[-1] == "}")):
            reader.take(1)
            put(": " if begin == ":" else "")
            before = begin
            continue
        if closing and begin == closing[-1] and before != ":":
            reader.take(1)
            put(closing.pop())
            before = "value"
        elif before == "value" or not begin:
            return False
        else:
            put(", " if before == "," else "")
            if begin in _CLOSING:
                reader.take(1)
                closing.append(_CLOSING[begin])
                put(begin)
                before = "["
                continue
            if not (yield from _read_scalar(reader, put, begin)):
                return False
            before = "value"
        if not closing:
            return True


def _read_scalar(reader: TextReader, put: Callable[[str], None], begin: str) -> Steps[bool]:
    """Read a string, number or constant. Return whether it is complete and valid."""
    if begin in _INSIDE_STRING:
        return (yield from _read_string(reader, put, begin))
    atom = yield from reader.read_while(_ATOM, MAX_NAME)
    if reader.is_ended and reader.is_empty:
        return False  # more digits might have followed
    if atom not in _CONSTANTS and not _NUMBER.fullmatch(atom):
        return False
    put(_CONSTANTS.get(atom, atom))
    return True


def _read_string(reader: TextReader, put: Callable[[str], None], quote: str) -> Steps[bool]:
    """Read a string and pass it on as JSON. Return whether it is complete."""
    inside = _INSIDE_STRING[quote]
    reader.take(1)
    put('"')
    while True:
        put(escape(reader.take_match(inside)))
        begin = yield from reader.peek()
        if begin == "\\":
            if (yield from reader.peek(2)) == begin:
                return False
            put((yield from _read_escape(reader)))
        elif begin in (quote, ""):
            reader.take(1)
            put('"' if begin else "")
            return bool(begin)


def _read_escape(reader: TextReader) -> Steps[str]:
    """Read an escape sequence. Return the same in JSON; the backslash of an unknown one is kept, as in Python."""
    kind = (yield from reader.peek(2))[1:]
    if kind in _ESCAPES:
        reader.take(2)
        return _ESCAPES[kind]
    ahead = yield from reader.peek(_ESCAPE_LENGTHS.get(kind, 1))
    if reader.is_ended and len(ahead) < _ESCAPE_LENGTHS.get(kind, 1):
        return ""
    if not _ESCAPE.fullmatch(ahead):
        reader.take(1)
        return "\\\\"
    reader.take(len(ahead))
    code = int(ahead[2:], 16)
    return f"\\u{code:04x}" if code < 0x10000 else escape(chr(code)) if code < 0x110000 else "\\ufffd"


def _members(rules: GrammarRules, schema: dict[str, Any], root: dict[str, Any], begin: Callable[[str], str]) -> str:
    """Return an expression for the members of an object. begin: returns the expression before a member's value."""
    items = [
        (f"{begin(name)} {_value(rules, schema['properties'][name], root)}", is_required)
        for name, is_required in members(schema).items()
    ]
    return rules.add_separated(items, literal(SEPARATOR))


def _value(rules: GrammarRules, schema: Any, root: dict[str, Any]) -> str:
    """Return an expression for a value."""
    if not isinstance(schema, dict):
        return _any_value(rules)
    values = listed_values(schema, root)
    if values is not None:
        return any_of(text for value in values for text in _constants(value))
    if isinstance(reference := schema.get("$ref"), str):
        target = referenced(reference, root)
        return rules.add_shared(root, reference, lambda: _value(rules, target, root))
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list) and alternatives:
        return any_of(_value(rules, each, root) for each in alternatives)
    given = schema.get("type")
    types = given if isinstance(given, list) and given else [given]
    return any_of(_value_of_type(rules, each, schema, root) for each in types)


def _value_of_type(rules: GrammarRules, given: Any, schema: dict[str, Any], root: dict[str, Any]) -> str:
    """Return an expression for values of one type of a schema."""
    if given in TERMINALS:
        return rules.add(f"python_{given}", TERMINALS[given])
    if given == "array":
        item = _value(rules, schema.get("items"), root)
        return f'"[" ({item} (", " {item})*)? "]"'
    if given == "object" and members(schema):
        inside = _members(rules, schema, root, lambda name: any_of(literal(f"{text}: ") for text in _quoted(name)))
        return f'"{{" {inside} "}}"'
    return _any_value(rules)


def _quoted(text: str) -> list[str]:
    """Return a string of Python in both kinds of quotes."""
    double = json.dumps(text, ensure_ascii=False)
    inside = double[1:-1].replace('\\"', '"').replace("'", "\\'")
    return [double, f"'{inside}'"]


def _constants(value: Any) -> list[str]:
    """Return expressions for a constant; texts in both kinds of quotes."""
    return list(map(literal, _quoted(value) if isinstance(value, str) else [repr(value)]))


def _any_value(rules: GrammarRules) -> str:
    """Return an expression for any value."""
    scalars = " | ".join(rules.add(f"python_{name}", body) for name, body in TERMINALS.items())
    array = '"[" (python_value (", " python_value)*)? "]"'
    entry = 'python_string ": " python_value'
    return rules.add("python_value", f'{scalars} | {array} | "{{" ({entry} (", " {entry})*)? "}}"')
