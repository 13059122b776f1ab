"""Normal form of JSON Schemas."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.text.schemas.errors import InvalidFormat
from app.text.schemas.normal_form import normal_form
from benchmarks.hostile_formats import FORMATS

INT, STR = {"type": "integer"}, {"type": "string"}
CLOSED = {"type": "object", "additionalProperties": False}


def form(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """Return the strict normal form."""
    return normal_form(schema, is_strict=True)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, {}),
        (False, {"not": {}}),
        ({"title": "x\0", "description": "y", "default": 1, "x-any": {}, "$schema": "z", "examples": [1]}, {}),
        ({"type": "string", "format": "color", "readOnly": True, "contentEncoding": "base64"}, STR),
        ({"type": ["integer", "null"]}, {"anyOf": [INT, {"type": "null"}]}),
        ({"type": ["integer", "number"]}, {"type": "number"}),
        ({"type": "string", "nullable": True}, {"anyOf": [STR, {"type": "null"}]}),
        ({"const": 3, "type": "integer", "minimum": 2}, {"enum": [3]}),
        ({"enum": ["a", 1, None, "bcd"], "type": ["string", "null"], "maxLength": 2}, {"enum": ["a", None]}),
        ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 7.9}, {**INT, "minimum": 3, "maximum": 7}),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, {**INT, "minimum": 4}),
        ({"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 2}),
        ({"type": "integer", "multipleOf": 0.5}, INT),
        ({"type": "array", "items": [INT, STR], "additionalItems": False},
         {"type": "array", "maxItems": 2, "prefixItems": [INT, STR], "items": False}),
        ({"type": "object", "properties": {"a": INT}}, {**CLOSED, "properties": {"a": INT}}),
        ({"type": "object", "properties": {}}, CLOSED),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "properties": {"a": False}}, CLOSED),
        ({"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": INT},
         {**CLOSED, "properties": {"a": INT}}),
        ({"type": "object", "properties": {"a": INT}, "unevaluatedProperties": STR},
         {"type": "object", "properties": {"a": INT}, "additionalProperties": STR}),
    ],
)  # fmt: skip
def test_keywords_have_one_form(schema: Any, expected: dict[str, Any]):
    """Older drafts and OpenAPI's `nullable` included; annotations are left out, also with control characters."""
    assert form(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"x": INT}}}},
        {"$ref": "#/$defs/B", "$defs": {"B": {"$ref": "#/$defs/A", "title": "B"}, "A": {"properties": {"x": INT},
                                                                                   "type": "object"}}},
        {"$ref": "#a", "$defs": {"A": {"$anchor": "a", "type": "object", "properties": {"x": INT}}}},
        {"$id": "http://a.b/s", "$ref": "t", "$defs": {"A": {"$id": "t", "type": "object", "properties": {"x": INT}}}},
        {"allOf": [{"$ref": "#/$defs/A"}], "description": "x", "$defs": {"A": {"type": "object",
                                                                           "properties": {"x": INT}}}},
        {"type": "object", "properties": {"x": {"$ref": "#/definitions/a~1b%25"}}, "definitions": {"a/b%": INT}},
        {"anyOf": [{"type": "object", "properties": {"x": INT}}, {"type": "object", "properties": {"x": INT}}]},
        {"type": "object", "oneOf": [{"properties": {"x": INT}}]},
    ],
)  # fmt: skip
def test_references_and_combinations_of_one_schema_are_resolved(schema: dict[str, Any]):
    """As FastMCP, pydantic and others write them at the root."""
    assert form(schema) == {**CLOSED, "properties": {"x": INT}}


def test_a_reference_may_lead_into_properties():
    """Any part of the document can be referenced."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"$ref": "#/properties/a"}},
    }
    properties = form(schema)["properties"]
    assert properties["a"] == properties["b"] == {"type": "string", "maxLength": 3}


def test_recursion_stays_a_reference():
    """The root of the form is an object nevertheless."""
    schema = {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}}}
    found = form(schema)
    assert found["properties"] == {"next": {"$ref": "#/$defs/N"}} and found["$defs"].keys() == {"N"}
    assert form(found) == found


def test_siblings_of_a_recursive_reference_are_merged():
    """The merged definition refers to the other one, or to itself."""
    node = {"type": "object", "properties": {"v": STR, "next": {"$ref": "#", "required": ["v"]}}}
    found = form(node)
    merged = found["$defs"][found["properties"]["next"]["$ref"].removeprefix("#/$defs/")]
    assert merged["required"] == ["v"] and merged["properties"].keys() == {"v", "next"}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"minimum": 1}, {"type": "integer", "maximum": 5}, {"minimum": 3}], {**INT, "minimum": 3, "maximum": 5}),
        ([{"type": "number", "multipleOf": 4}, {"type": "integer", "multipleOf": 6}], {**INT, "multipleOf": 12}),
        ([{"type": ["string", "null"]}, {"type": ["null", "integer"]}], {"type": "null"}),
        ([{"type": "string", "maxLength": 5}, {"maxLength": 3, "pattern": "a"}],
         {"type": "string", "maxLength": 3, "pattern": "a"}),
        ([{"type": "string", "pattern": "a"}, {"pattern": "b"}],
         {"type": "string", "pattern": "a", "allOf": [{"pattern": "b"}]}),
        ([{"enum": [1, 2, "a"]}, {"enum": ["a", 2.0]}], {"enum": [2, "a"]}),
        ([{"enum": [1]}, {"enum": [True]}], {"not": {}}),
        ([{"type": "array", "items": INT}, {"minItems": 1, "prefixItems": [{"minimum": 0}]}],
         {"type": "array", "items": INT, "minItems": 1, "prefixItems": [{**INT, "minimum": 0}]}),
        ([{"type": "object", "properties": {"a": INT}, "required": ["a"]},
          {"properties": {"b": STR, "a": {"minimum": 0}}}],
         {**CLOSED, "properties": {"a": {**INT, "minimum": 0}, "b": STR}, "required": ["a"]}),
        ([{"type": "object", "properties": {"a": INT}}, {"anyOf": [{"required": ["a"]}, {"maxProperties": 0}]}],
         {"anyOf": [{**CLOSED, "properties": {"a": INT}, "required": ["a"]}, CLOSED]}),
        ([{"type": "string"}, {"type": "integer"}], {"not": {}}),
    ],
)  # fmt: skip
def test_all_of_is_merged(parts: list[dict[str, Any]], expected: dict[str, Any]):
    """Types are intersected, bounds tightened, properties joined."""
    assert form({"allOf": parts}) == expected


def tagged(name: str, **more: Any) -> dict[str, Any]:
    """Return an object with a constant."""
    return {"type": "object", "properties": {"kind": {"const": name}, "v": INT}, **more}


@pytest.mark.parametrize(
    ("alternatives", "more", "is_disjoint"),
    [
        ([tagged("a", required=["kind"]), tagged("b", required=["kind"])], {}, True),
        ([tagged("a"), tagged("b")], {"discriminator": {"propertyName": "kind"}}, True),
        ([tagged("a"), tagged("b")], {"required": ["kind"]}, True),
        ([tagged("a"), tagged("b")], {}, False),
        ([STR, INT, {"type": "null"}], {}, True),
        ([{"const": 1}, {"const": 2}, {"type": "string"}], {}, True),
        ([{"type": "number", "maximum": 1}, {"type": "integer", "exclusiveMinimum": 1}], {}, True),
        ([INT, {"type": "number"}], {}, False),
        ([{"const": "ab"}, {"type": "string", "pattern": "b$"}], {}, False),
        ([{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}], {}, False),
    ],
)
def test_one_of_needs_alternatives_without_a_common_value(alternatives: Any, more: dict[str, Any], is_disjoint: bool):
    """Objects are compared as their schema states them, before they are closed."""
    schema = {"oneOf": alternatives, **more}
    if is_disjoint:
        assert len(form(schema)["anyOf"]) >= 2
    else:
        with pytest.raises(InvalidFormat, match="oneOf at the root"):
            form(schema)
        assert "anyOf" in normal_form(schema, is_strict=False)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/x"}, r"\$ref at the root leads to no part"),
        ({"$ref": "http://e.org/other"}, r"\$ref at the root leads to no part"),
        ({"$ref": "#"}, "leads to itself"),
        ({"properties": {"a": {"type": "text"}}}, r"type at properties\.a must be one of"),
        ({"items": {"minLength": -1}}, r"minLength at items must be"),
        ({"allOf": []}, "allOf at the root must be a list"),
        ({"properties": {"a": 1}}, r"the schema at properties\.a must be"),
        ({"required": "a"}, "required at the root must be a list"),
        ({"enum": 3}, "enum at the root must be a list"),
        ({"minimum": "1"}, "minimum at the root must be a number"),
        ({"minItems": 10**10}, "minItems at the root must be at most"),
    ],
)
def test_a_malformed_schema_is_refused_with_its_place(schema: dict[str, Any], message: str):
    """Strict or not."""
    for is_strict in (True, False):
        with pytest.raises(InvalidFormat, match=message):
            normal_form(schema, is_strict=is_strict)


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if "response_format" in each])
def test_expensive_schemas_are_translated_or_refused_soon(name: str):
    """The work is counted, and the size of the form is linear in that of the schema."""
    schema = FORMATS[name]["response_format"]["json_schema"]["schema"]
    began = time.process_time()
    try:
        found = form(schema)
    except InvalidFormat:
        found = {}
    assert time.process_time() - began < 1.0
    assert len(str(found)) < 20 * len(str(schema)) + 1000


def test_a_product_of_alternatives_is_too_complex():
    """It would have a million of them."""
    options = [{"properties": {f"p{number}": {"type": "string"}}, "required": [f"p{number}"]} for number in range(10)]
    with pytest.raises(InvalidFormat, match="too complex"):
        form({"type": "object", "allOf": [{"anyOf": options}] * 6})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 10**400},
        {"type": "string", "minLength": float("inf")},
        {"enum": [1, float("inf")]},
        {"type": "object", "properties": {"a": {"const": -(10**309)}}},
    ],
)
def test_numbers_out_of_range_are_refused(schema: dict[str, Any]):
    """JSON has a text for them, and nothing can be computed from them."""
    with pytest.raises(InvalidFormat, match="numbers in a schema"):
        form(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [*range(9000)], "anyOf": [{"minimum": number} for number in range(100)]},
        {"enum": [*range(6000)], "anyOf": [{"multipleOf": number + 0.001} for number in range(1, 100)]},
    ],
)
def test_work_on_listed_values_is_counted(schema: dict[str, Any]):
    """Each value would be compared with each alternative."""
    with pytest.raises(InvalidFormat, match="too complex"):
        form(schema)
