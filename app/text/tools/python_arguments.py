"""Arguments in Python's syntax, as Llama 3.2 and Llama 4 write them: f(a=1, b="x").

Values become JSON as they arrive: strings, numbers, True, False, None, lists and dictionaries.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.text.schemas.enforcement import Enforcement, at, below
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.expressions import add_named, repeated
from app.text.schemas.nodes import ANY, Node, referenced_name
from app.text.tools.argument_schema import is_open, members
from app.text.tools.argument_types import escape
from app.text.tools.grammar_rules import GrammarRules, any_of, literal
from app.text.tools.syntax import MAX_NAME, ArgumentSyntax, OpenCall
from app.text.tools.text_reader import Literals, Steps, TextReader

_STRING = r"""/"([^"\\\n]|\\[^\n])*"|'([^'\\\n]|\\[^\n])*'/"""
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
_ESCAPES = {"'": "'", "a": "\\u0007", "v": "\\u000b", "\n": ""} | {c: f"\\{c}" for c in '"\\nrtbf'}
_OCTAL = re.compile(r"\\[0-7]{1,3}")
_HIGH_SURROGATES, _LOW_SURROGATES = range(0xD800, 0xDC00), range(0xDC00, 0xE000)


@dataclass(frozen=True, slots=True)
class PythonArguments(ArgumentSyntax):
    """Keyword arguments. In constrained calls they are in the order of the schema, with values of its types."""

    def expression(self, rules: GrammarRules, schema: Node | None, *, is_strict: bool) -> str:
        """Return an expression for the arguments. Raises `InvalidFormat`."""
        writer = _Writer(rules, {} if schema is None else schema, Enforcement(is_strict=is_strict))
        if schema is None or is_open(schema):
            item = rules.add("argument", f'/{ANY_NAME}/ "=" {writer.value(ANY, "")}')
            return f"({item} ({literal(SEPARATOR)} {item})*)?"
        return writer.members(schema, "", lambda name: literal(f"{name}="))

    def read(self, call: OpenCall) -> Steps[bool]:
        """Read the arguments and the end of the call. Return whether it is complete."""
        is_any = call.schema is None or is_open(call.schema)
        names = {} if call.schema is None else {f"{name}=": name for name in members(call.schema)}
        if (yield from call.reader.accept(Literals([call.end]))):
            call.put("{}")
            return True
        first, separators = True, Literals([SEPARATOR, call.end])
        while True:
            if is_any:
                name = yield from call.reader.read_while(_ANY_NAME, MAX_NAME)
                name = name if (yield from call.reader.accept(Literals(["="]))) else ""
            else:
                name = names.get((yield from self._read_name(call.reader, Literals(names))), "")
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

    def _read_name(self, reader: TextReader, names: Literals) -> Steps[str]:
        """Read and return a name with its sign; empty if there is none, or if a longer one might have followed the end
        of the answer: `a=` begins `a=b=` too.
        """
        found = yield from reader.find(names)
        return "" if reader.is_ended and reader.may_continue(names) else reader.take(len(found))


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
    """Read an escape sequence. Return the same in JSON; the backslash of an unknown one is kept, as in Python.

    A sequence that the end of the answer cuts is left out.
    """
    kind = (yield from reader.peek(2))[1:]
    if kind in _ESCAPES:
        reader.take(2)
        return _ESCAPES[kind]
    length = 4 if kind.isdigit() else _ESCAPE_LENGTHS.get(kind, 1)
    ahead = yield from reader.peek(length)
    if len(ahead) < length:
        reader.take(length)
        return ""
    if octal := _OCTAL.match(ahead):
        reader.take(octal.end())
        return _json_character(int(octal[0][1:], 8))
    if not _ESCAPE.fullmatch(ahead):
        reader.take(1)
        return "\\\\"
    reader.take(length)
    code = int(ahead[2:], 16)
    if kind == "u" and code in _HIGH_SURROGATES:
        return (yield from _read_low_surrogate(reader, code))
    return _json_character(code)


def _read_low_surrogate(reader: TextReader, high: int) -> Steps[str]:
    """Read the second half of a character that is written with two escapes. Return the character in JSON."""
    for size in range(1, _ESCAPE_LENGTHS["u"] + 1):
        ahead = yield from reader.peek(size)
        if len(ahead) < size:
            return ""
        if not _begins_escape(ahead):
            return _json_character(high)
    low = int(ahead[2:], 16)
    if low not in _LOW_SURROGATES:
        return _json_character(high)
    reader.take(len(ahead))
    return _json_character(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)


def _begins_escape(text: str) -> bool:
    r"""Return whether a text is the beginning of an escape such as \ude00."""
    return text[:2] == "\\u"[: len(text)] and all(digit in string.hexdigits for digit in text[2:])


def _json_character(code: int) -> str:
    """Return a character inside of a JSON string; the replacement character for a code that is none."""
    if code < 0x20:
        return f"\\u{code:04x}"
    is_character = code < 0x110000 and code not in _HIGH_SURROGATES and code not in _LOW_SURROGATES
    return escape(chr(code)) if is_character else "\\ufffd"


def _quoted(text: str) -> list[str]:
    """Return a string of Python in both kinds of quotes."""
    double = json.dumps(text, ensure_ascii=False)
    inside = double[1:-1].replace('\\"', '"').replace("'", "\\'")
    return [double, f"'{inside}'"]


def _constants(value: Any) -> list[str]:
    """Return expressions for a constant; texts in both kinds of quotes."""
    return list(map(literal, _quoted(value) if isinstance(value, str) else [repr(value)]))


class _Writer:
    """Translation of the values of one schema in normal form."""

    def __init__(self, rules: GrammarRules, root: Node, enforcement: Enforcement) -> None:
        self._rules = rules
        self._definitions: dict[str, Node] = root.get("$defs", {})
        self._enforcement = enforcement

    def members(self, schema: Node, place: str, begin: Callable[[str], str]) -> str:
        """Return an expression for the members of an object. begin: returns the expression before a member's value."""
        required, inner = schema.get("required", ()), below(place, "properties")
        items = [
            (f"{begin(name)} {self.value(node, below(inner, name))}", name in required)
            for name, node in schema.get("properties", {}).items()
        ]
        return self._rules.add_separated(items, literal(SEPARATOR))

    def value(self, node: Node, place: str) -> str:
        """Return an expression for the values of a node. Raises `InvalidFormat`."""
        self._enforcement.step()
        if "not" in node:
            raise InvalidFormat(f"no value satisfies the schema {at(place)}")
        if (name := referenced_name(node)) is not None:
            inside = below("$defs", name)
            return self._rules.add_shared(self._definitions, name, lambda: self.value(self._definitions[name], inside))
        if "anyOf" in node:
            inner = below(place, "anyOf")
            values = (self.value(each, below(inner, number)) for number, each in enumerate(node["anyOf"]))
            return add_named(self._rules, "python_any", any_of(values))
        if "enum" in node and "type" not in node:
            constants = any_of(text for value in node["enum"] for text in _constants(value))
            return add_named(self._rules, "python_constant", constants)
        match node.get("type"):
            case "null":
                return '"None"'
            case "boolean":
                return self._rules.add("PYTHON_BOOLEAN", '"True" | "False"')
            case "array":
                return add_named(self._rules, "python_array", self._array(node, place))
            case "object":
                return add_named(self._rules, "python_object", self._object(node, place))
            case "string" if node.keys() == {"type"}:
                return self._rules.add("PYTHON_STRING", _STRING)
            case None:
                return self._any_value()
        # Numbers, and strings in double quotes without escapes by number, are the same in JSON and in Python.
        return self._rules.json_value(node, is_strict=True)

    def _array(self, node: Node, place: str) -> str:
        if node.get("uniqueItems"):
            self._enforcement.drop("uniqueItems", place)
        prefix = [self.value(each, place) for each in node.get("prefixItems", ())]
        minimum, maximum = node.get("minItems", 0), node.get("maxItems")
        rest = node.get("items", ANY)
        if maximum == 0 or (rest is False and not prefix):
            return '"[]"'
        tail = ""
        if rest is not False and (maximum is None or maximum > len(prefix)):
            item = self.value(rest, below(place, "items"))
            prefix = prefix or [item]
            most = None if maximum is None else maximum - len(prefix)
            tail = repeated(f"{literal(SEPARATOR)} {item}", max(minimum - len(prefix), 0), most)
        for number in range(len(prefix) - 1, -1, -1):
            tail = f"{literal(SEPARATOR) if number else ''} {prefix[number]} {tail}"
            tail = tail if number < minimum else f"({tail})?"
        return f'"[" {tail} "]"'

    def _object(self, node: Node, place: str) -> str:
        for keyword in node:
            if keyword not in ("type", "properties", "required", "additionalProperties"):
                self._enforcement.drop(keyword, place)
        if members(node):
            inside = self.members(node, place, lambda name: any_of(literal(f"{text}: ") for text in _quoted(name)))
            return f'"{{" {inside} "}}"'
        others = node.get("additionalProperties", ANY)
        if others is False:
            return '"{}"'
        key = self._rules.add("PYTHON_STRING", _STRING)
        entry = f'{key} ": " {self.value(others if isinstance(others, dict) else ANY, place)}'
        return f'"{{" ({entry} ({literal(SEPARATOR)} {entry})*)? "}}"'

    def _any_value(self) -> str:
        """Return an expression for any value."""
        self._rules.add("PYTHON_BOOLEAN", '"True" | "False"')
        self._rules.add("PYTHON_STRING", _STRING)
        number = self._rules.json_value({"type": "number"}, is_strict=True)
        array = '"[" (python_value (", " python_value)*)? "]"'
        entry = 'PYTHON_STRING ": " python_value'
        scalars = f'PYTHON_BOOLEAN | PYTHON_STRING | "None" | {number}'
        return self._rules.add("python_value", f'{scalars} | {array} | "{{" ({entry} (", " {entry})*)? "}}"')
