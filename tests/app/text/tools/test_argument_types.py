"""Types of arguments by a tool's schema, and the JSON values of texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.text.tools.argument_types import ANY, STRING, argument_types, escape, json_value
from app.text.tools.definitions import Tool, ToolUse
from app.text.tools.formats import FORMATS


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"type": ["array", "null", 7]}, {"array", "null"}),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}]}]}, {"integer", "null"}),
        ({"allOf": [{"type": ["integer", "null"]}, {"$ref": "#/$defs/a~1b"}]}, {"integer"}),
        ({"$ref": "#/$defs/a~1b"}, {"integer", "string"}),
        ({"$ref": "#/$defs/loop"}, {"null"}),
        ({"$ref": "#/$defs/none"}, ANY),
        ({"$ref": "https://example.com/a.json"}, ANY),
        ({"enum": ["a", None, 1.5]}, {"string", "null", "number"}),
        ({"const": {}}, {"object"}),
        ({}, ANY),
        (True, ANY),
        ({"type": 7, "enum": "a", "anyOf": {}}, ANY),
    ],
)
def test_types_of_an_argument(schema: Any, types: set[str]):
    """Alternatives, references inside of the schema and enumerations are followed; anything else allows any type."""
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}
    defs = {"a/b": {"type": ["integer", "string"]}, "loop": loop}
    assert argument_types({"properties": {"x": schema}, "$defs": defs}, "x") == types


def test_types_of_an_unknown_argument():
    """It is a string, unless the schema has a type for other arguments."""
    assert argument_types({"properties": {"x": {"type": "null"}}}, "y") == argument_types({}, "y") == STRING
    assert argument_types({"properties": 7, "additionalProperties": {"type": "boolean"}}, "y") == {"boolean"}
    assert argument_types({"additionalProperties": True}, "y") == STRING


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, "5"),
        (" 5\n", {"integer"}, "5"),
        ("5.0", {"integer"}, "5.0"),
        ("5.5", {"integer"}, '"5.5"'),
        ("5", {"number"}, "5"),
        ("1e999", {"number"}, '"1e999"'),
        ("NaN", {"number"}, '"NaN"'),
        ("9" * 5000, {"integer"}, f'"{"9" * 5000}"'),
        ("true", {"boolean"}, "true"),
        ("False", {"boolean"}, "false"),
        ("1", {"boolean"}, '"1"'),
        ("true", {"integer"}, '"true"'),
        ("None", {"null", "string"}, "null"),
        ("None", {"string"}, '"None"'),
        ('{"a": 1}', {"object"}, '{"a": 1}'),
        ('{"a": 1}', {"array"}, '"{\\"a\\": 1}"'),
        ('"a"', {"string", "null"}, '"\\"a\\""'),
        ("[" * 100_000, {"array"}, f'"{"[" * 100_000}"'),
        ("é\n", {"integer"}, '"é\\n"'),
        ("", {"integer"}, '""'),
    ],
)
def test_the_value_of_a_text(text: str, types: set[str], value: str):
    """A text that is not JSON of an allowed type is a string; the result is always valid JSON."""
    assert json_value(text, frozenset(types)) == value
    json.loads(value, parse_int=str)


def test_a_text_can_be_escaped_in_parts():
    """A string is streamed that way."""
    text = 'a"\\\n\t\x00é😀\u2028'
    assert "".join(map(escape, text)) == escape(text) and json.loads(f'"{escape(text)}"') == text


def test_work_is_linear_in_a_schema_whose_references_branch():
    """Each definition is read once; following every path would take longer than any test."""
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(20)}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs | {"d20": {"type": "null"}}}
    assert argument_types(schema, "x") == {"null"}
    for tool_format in FORMATS:
        assert tool_format.answer(ToolUse((Tool("f", "", schema, strict=True),))).grammar() is not None


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("{'a': [True, None]}", {"object", "string"}, '{"a": [true, null]}'),
        (r"['\ud83d\ude00']", {"array"}, '["😀"]'),
        (r"['\udc00']", {"array"}, '["\ufffd"]'),
        ("0xdead", {"string", "integer"}, '"0xdead"'),
        ("1_000", {"string", "integer"}, '"1_000"'),
        ("5  # five", {"string", "integer"}, '"5  # five"'),
        ("1e999", {"string", "number"}, '"1e999"'),
        ("[" * 3000, {"string", "array"}, json.dumps("[" * 3000)),
        ("{1, 2}", {"string", "object"}, '"{1, 2}"'),
    ],
)
def test_values_in_the_syntax_of_python(text: str, types: set[str], expected: str):
    """Objects, arrays and constants become JSON; numbers are only those of JSON."""
    assert json_value(text, frozenset(types)) == expected
