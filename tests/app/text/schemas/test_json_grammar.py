"""Grammars of JSON by a schema: texts that they accept and refuse."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from app.text.schemas.errors import InvalidFormat
from app.text.schemas.formats import FORMATS
from engine.errors import InvalidParameter
from tests.app.text.schemas.texts import TOKENIZER, accepts, grammar, matcher, random_text

BIG = 1234567890123456789
INT, STR = {"type": "integer"}, {"type": "string"}


def an_object(**properties: Any) -> dict[str, Any]:
    """Return a schema of an object with these properties."""
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize("value", [BIG, -(10**30), 0.1, 1e22, 5e-324, 1.7976931348623157e308, -0.5, 3])
def test_numbers_of_enumerations_have_all_their_digits(value: float):
    """They are literals of the grammar instead of doubles."""
    text = json.dumps(value)
    for schema in ({"const": value}, {"enum": ["a", value]}, an_object(a={"enum": [value, [value]]})):
        content = text if "type" not in schema else f'{{"a": [{text}]}}'
        assert accepts(schema, content)
    assert not accepts({"const": BIG}, "1234567890123456768")


def test_a_constant_without_a_fraction_is_an_integer_too():
    """1.0 equals 1; the constant 1 is written in one way."""
    assert accepts({"const": 1.0}, "1") and accepts({"const": 1.0}, "1.0") and not accepts({"const": 1}, "1.0")


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"minimum": BIG, "maximum": BIG + 10}, [BIG, BIG + 10], [BIG - 1, BIG + 11]),
        ({"exclusiveMinimum": 10**40, "type": "integer"}, [10**40 + 1], [10**40, 5]),
        ({"minimum": -(10**300), "maximum": 10**300}, [0, -5, 10**17], []),
        ({"minimum": 3}, [3, 10, 10**18 - 1], [2, -3, 0]),
        ({"maximum": -7}, [-7, -70], [-6, 7, 0]),
        ({"minimum": -12, "maximum": 104}, [-12, -1, 0, 9, 104], [-13, 105, -100]),
        ({"minimum": 2.5, "exclusiveMaximum": 6.0}, [3, 5], [2, 6]),
        ({"multipleOf": 7}, [0, 14, -21], [1, 15]),
        ({"multipleOf": 0.5}, [1, 2], []),
    ],
)
def test_integers_have_exact_bounds(schema: dict[str, Any], inside: list[int], outside: list[int]):
    """Also beyond the integers that a double holds."""
    start = {**schema, "type": "integer"}
    assert all(accepts(start, str(value)) for value in inside)
    assert not any(accepts(start, str(value)) for value in outside)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"minimum": 0.1}, ["0.1", "0.10", "1", "7.25"], ["0.09", "0", "-1", "0.0999"]),
        ({"exclusiveMinimum": 0}, ["0.01", "5"], ["0", "0.0", "-0.1"]),
        ({"maximum": -1.5}, ["-1.5", "-2", "-1.51"], ["-1.49", "-1", "0", "1.5"]),
        ({"minimum": -0.5, "maximum": 2.25}, ["-0.5", "0", "0.7", "2.25", "2.2"], ["-0.51", "2.26", "3", "2.251"]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, ["1.01", "1.4999"], ["1", "1.0", "1.5", "1.50"]),
        ({"minimum": 5e-324, "maximum": 1e308}, ["0.00000000000001", "3"], ["0", "-1"]),
        ({"multipleOf": 0.01}, ["1.25", "-3", "0.5"], ["1.255"]),
        ({}, ["-0", "0", "-12.5e-7", "1E+22", "0.30000000000000004"], ["01", "1.", "+1", ".5", "1e999", "1e400"]),
    ],
)
def test_numbers_have_exact_bounds(schema: dict[str, Any], inside: list[str], outside: list[str]):
    """Every number that is allowed is within the range of doubles."""
    start = {**schema, "type": "number"}
    assert [text for text in inside if not accepts(start, text)] == []
    assert [text for text in outside if accepts(start, text)] == []


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        (INT, 19),
        ({"type": "number"}, 41),
        ({"type": "integer", "minimum": 0}, 18),
        ({"type": "number", "maximum": 9}, 32),
        ({"type": "integer", "multipleOf": 7}, 17),
        ({"type": "number", "multipleOf": 0.01}, 20),
    ],
)
def test_numbers_end(schema: dict[str, Any], most: int):
    """A model that prefers digits to an end cannot go on up to the limit of its answer."""
    found = matcher(schema)
    text = ""
    while allowed := [each for each in "71.0e2-" if found.deep_copy().try_consume_tokens([1 + ord(each)]) == 1]:
        text += allowed[0]
        assert found.consume_token(1 + ord(allowed[0])) and len(text) <= most
    assert found.is_accepting()


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "0004-02-29", "2023-04-30"], ["2023-02-29", "1900-02-29", "2023-04-31",
                                                                         "2023-13-01", "2023-00-10", "0000-01-01"]),
        ("date-time", ["2024-02-29T23:59:59Z", "2023-01-01T00:00:00.5+05:30"], ["2023-02-29T00:00:00Z",
                                                                            "2023-01-01T24:00:00Z", "2023-01-01"]),
        ("time", ["12:00:00Z"], ["12:60:00Z", "25:00:00Z"]),
        ("uuid4", ["123e4567-e89b-42d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-426614174000"]),
        ("ipv6", ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "2001:db8::1"], ["1:2", ":::", "1::2::3"]),
        ("uri", ["https://example.org/a?b=c#d", "mailto:a@b.org", "http://[::1]:80/"], ["example.org", "http://"]),
    ],
)  # fmt: skip
def test_formats_allow_real_values_only(name: str, good: list[str], bad: list[str]):
    """29 February is in leap years only. Lengths and patterns hold beside a format."""
    for schema in ({"type": "string", "format": name}, {"format": name, "type": "string", "minLength": 2}):
        assert [text for text in good if not accepts(schema, json.dumps(text))] == []
        assert [text for text in bad if accepts(schema, json.dumps(text))] == []
    with_pattern = {"type": "string", "format": name, "pattern": "^[^!]+$"}
    assert accepts(with_pattern, json.dumps(good[0])) and not accepts(with_pattern, json.dumps(bad[0]))


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_texts(name: str):
    """Their expressions are valid in the grammar."""
    assert random_text(matcher({"type": "string", "format": name}), random.Random(1))


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ('{"a": 1, "b": [1, 2]}', True),
        ('{"a":1,"b":[1,2]}', True),
        ('{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}', True),
        ('{ "a": 1 }', True),
        ('{"a": 1,\n' + " " * 32 + '"b": []}', True),
        ('{"a": 1, "b": [ ]}', True),
        ('{"a" : 1}', False),
        ('{"a": 1 , "b": []}', False),
        ('{"a": 1, "b": [1 , 2]}', False),
        ('{"a":  1}', False),
        ('{"a": 1,\n' + " " * 33 + '"b": []}', False),
        ('{"a": 1\n\n}', False),
        ('{"a":\t1}', False),
        (' {"a": 1}', False),
        ('{"a": 1, "b": [  ]}', False),
    ],
)
def test_white_space_is_where_templates_write_it(text: str, is_accepted: bool):
    """At most a blank, or a line break with an indent; never before a comma or a colon."""
    schema = {**an_object(a=INT, b={"type": "array", "items": INT}), "required": ["a"]}
    assert accepts(schema, text) == is_accepted
    assert accepts({"type": "object"}, text) == is_accepted


@pytest.mark.parametrize(
    ("schema", "text", "is_accepted"),
    [
        (an_object(a=INT), '{"a": 1, "b": 2}', False),
        (an_object(), '{"b": 2}', False),
        ({"type": "object"}, '{"b": 2}', True),
        ({**an_object(a=INT), "additionalProperties": True}, '{"a": 1, "b": 2}', True),
        ({**an_object(a=INT), "additionalProperties": True}, '{"a": 1, "a": "x"}', False),
        ({**an_object(a=INT), "additionalProperties": True}, '{"b": 2, "a": 1}', False),
        ({**an_object(a=INT), "additionalProperties": STR}, '{"b": 2}', False),
        ({**an_object(a=INT), "required": ["b"]}, '{"a": 1, "b": [2]}', True),
        ({**an_object(a=INT), "required": ["b"]}, '{"a": 1}', False),
        ({"type": "object", "required": ["b"]}, '{"b": null, "c": 1}', True),
        ({"type": "object", "required": ["b"]}, '{"c": 1}', False),
        ({**an_object(a=INT), "unevaluatedProperties": True}, '{"a": 1, "b": 2}', True),
        ({"allOf": [an_object(a=INT), an_object(b=STR)]}, '{"a": 1, "b": "x"}', True),
        ({"allOf": [an_object(a=INT), an_object(b=STR)]}, '{"a": 1, "c": "x"}', False),
    ],
)
def test_an_object_with_properties_is_closed_unless_its_schema_opens_it(schema: Any, text: str, is_accepted: bool):
    """A required name always has a value; an object without properties is any object."""
    assert accepts(schema, text) == is_accepted


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"items": {"enum": ["a", "b", 1]}}, ["[]", '["b", "a"]', '[1, "a", "b"]'], ['["a", "a"]', '[1, "a", 1]']),
        ({"items": {"type": "boolean"}}, ["[true, false]"], ["[true, true]"]),
        ({"items": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": [1, 1.0, 2]}}}, ["[2, 1]"], ["[1, 2, 1]"]),
        ({"items": {"anyOf": [{"const": "x"}, {"type": "null"}]}, "minItems": 2}, ['["x", null]'], ['["x"]', "[]"]),
        ({"items": {"enum": [1, 2, 3]}, "maxItems": 2}, ["[3, 1]"], ["[1, 2, 3]", "[1, 1]"]),
        ({"items": {"type": "integer"}, "maxItems": 1}, ["[5]"], ["[5, 5]"]),
    ],
)
def test_unique_items_of_few_values_are_enforced(schema: dict[str, Any], good: list[str], bad: list[str]):
    """In any order, with the bounds of the array."""
    schema = {"type": "array", "uniqueItems": True, **schema}
    assert all(accepts(schema, text) for text in good) and not any(accepts(schema, text) for text in bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**an_object(a=INT, b=INT), "minProperties": 1}, ['{"b": 1}'], ["{}"]),
        ({**an_object(a=INT, b=INT), "minProperties": 2}, ['{"a": 1, "b": 1}'], ['{"a": 1}']),
        ({**an_object(a=INT), "required": ["a"], "minProperties": 1}, ['{"a": 1}'], ["{}"]),
        ({"type": "object", "additionalProperties": INT, "minProperties": 1}, ['{"x": 1}'], ["{}"]),
        ({"type": "object", "maxProperties": 2}, ['{"x": 1, "y": 2}', "{}"], ['{"x": 1, "y": 2, "z": 3}']),
        ({"type": "object", "maxProperties": 0}, ["{}"], ['{"x": 1}']),
        ({**an_object(a=INT), "required": ["a"], "additionalProperties": INT, "maxProperties": 2},
         ['{"a": 1}', '{"a": 1, "b": 2}'], ['{"a": 1, "b": 2, "c": 3}']),
        ({**an_object(a=INT), "required": ["a"], "additionalProperties": INT, "maxProperties": 1},
         ['{"a": 1}'], ['{"a": 1, "b": 2}']),
        ({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": INT},
         ['{"x": 1, "y": 2}', "{}"], ['{"z": 1}', '{"x": 1, "x": 2}']),
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"x": 1}'], ['{"X": 1}']),
        ({"type": "object", "patternProperties": {"^x": INT}}, ['{"xa": 1, "xb": 2}'], ['{"y": 1}', '{"xa": "b"}']),
        ({"type": "object", "patternProperties": {"^x": INT}, "properties": {"y": STR}, "additionalProperties": False},
         ['{"y": "a", "xb": 2}'], ['{"y": 1}', '{"y": "a" , "xb": 2}']),
    ],
)  # fmt: skip
def test_counts_and_names_of_members_are_enforced(schema: dict[str, Any], good: list[str], bad: list[str]):
    """Where members whose names may repeat cannot satisfy a count instead of different ones."""
    assert [text for text in good if not accepts(schema, text)] == []
    assert [text for text in bad if accepts(schema, text)] == []


REFUSED = [
    ({"type": "array", "items": INT, "uniqueItems": True}, "uniqueItems at the root"),
    ({"type": "object", "minProperties": 2}, "minProperties at the root"),
    (an_object(a={**an_object(b={}, c={}), "maxProperties": 1}), r"maxProperties at properties\.a"),
    (an_object(**{"a\x01": INT}), "properties at the root has a name with a control character"),
    (an_object(a={"type": "string", "pattern": "^(?!x)y"}), r"pattern at properties\.a has look-around"),
    (an_object(a={"type": "array", "contains": INT}), r"contains at properties\.a"),
    (an_object(a={"oneOf": [INT, {"type": "number"}]}), r"oneOf at properties\.a has alternatives"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": INT}}}, r"not at \$defs\.a"),
    ({"type": "integer", "minimum": 10**70}, "minimum at the root has too many digits"),
    ({"type": "integer", "multipleOf": 99991}, "multipleOf at the root"),
    ({"if": INT, "then": STR}, "if at the root"),
    ({"enum": [{"a": 1}], "unevaluatedProperties": False}, "unevaluatedProperties at the root"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), REFUSED)
def test_a_keyword_that_cannot_be_enforced_is_named(schema: dict[str, Any], message: str):
    """It is left out unless the schema must be enforced."""
    with pytest.raises(InvalidFormat, match=message):
        grammar(schema)
    TOKENIZER.compile(grammar(schema, is_strict=False))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 10**12},
        {"type": "string", "maxLength": 10**18},
        {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000, "items": {"maxItems": 1000}}},
        an_object(**{f"p{number}": {"type": "string"} for number in range(4000)}),
        {"enum": [f"word{number * 7919 % 5000}" for number in range(5000)]},
    ],
)
def test_large_schemas_compile(schema: dict[str, Any]):
    """Neither counts nor long lists exhaust the limits or the stack of a grammar."""
    TOKENIZER.compile(grammar(schema))


def test_an_object_without_values_has_no_grammar():
    """The error is that of a grammar without texts, or of the schema."""
    endless = {"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}
    assert not accepts(endless, "{}")
    for schema in (False, {"type": "integer", "minimum": 3, "maximum": 2}, {"enum": [1], "type": "string"}):
        with pytest.raises((InvalidFormat, InvalidParameter), match=r"no (value|text) satisfies"):
            TOKENIZER.compile(grammar(schema))
