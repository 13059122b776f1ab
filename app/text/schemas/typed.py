"""Nodes of one type, from a schema's keywords for that type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from app.text.schemas.enforcement import Enforcement, at, below
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.formats import FORMATS
from app.text.schemas.merging import merged_numbers
from app.text.schemas.nodes import ANY, NONE, Node

MAX_COUNT = 1_000_000_000  # of characters, items or members; no answer is as long
_CONTROL_CHARACTER = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")  # without a short escape in JSON
_LOOK_AROUND = re.compile(r"(?<!\\)(?:\\\\)*\(\?<?[=!]|(?<!\\)(?:\\\\)*\\(?:[1-9]|k<)")
# The beginning of the patterns that pydantic writes for decimal numbers: at least one character is not a sign or point.
_NOT_ONLY_SIGNS, _ANY_DIGIT = "^(?!^[-+.]*$)", "[^-+.]"
_NOT_ENFORCED = {
    "array": ("contains", "unevaluatedItems"),
    "object": ("dependentRequired", "dependentSchemas", "dependencies"),
}


class TypedNodes:
    """Translation of keywords. normalize: returns the node of a schema at a place."""

    def __init__(self, normalize: Callable[[Any, str], Node], enforcement: Enforcement) -> None:
        self._normalize = normalize
        self._enforcement = enforcement

    def node(self, kind: str, schema: dict[str, Any], place: str) -> Node:
        """Return the node of the values of one type that satisfy a schema's own keywords."""
        for keyword in _NOT_ENFORCED.get(kind, ()):
            if keyword in schema:
                self._enforcement.drop(keyword, place)
        match kind:
            case "integer" | "number":
                return _numbers(kind, schema, place)
            case "string":
                return self._strings(schema, place)
            case "array":
                return self._arrays(schema, place)
            case "object":
                return self._objects(schema, place)
        return {"type": kind}

    def _strings(self, schema: dict[str, Any], place: str) -> Node:
        node: Node = {"type": "string", **_counts(schema, "minLength", "maxLength", place)}
        pattern = schema.get("pattern")
        if "pattern" in schema and not isinstance(pattern, str):
            raise InvalidFormat(f"pattern {at(place)} must be a text")
        if isinstance(pattern, str):
            if pattern.startswith(_NOT_ONLY_SIGNS):
                pattern = "^" + pattern.removeprefix(_NOT_ONLY_SIGNS)
                node["allOf"] = [{"pattern": _ANY_DIGIT}]
            if _LOOK_AROUND.search(pattern):
                self._enforcement.drop("pattern", place, "has look-around or a back reference, which is not supported")
                node.pop("allOf", None)
            else:
                node["pattern"] = pattern
        if (name := schema.get("format")) in FORMATS:
            node["format"] = name
        return NONE if node.get("minLength", 0) > node.get("maxLength", math.inf) else node

    def _arrays(self, schema: dict[str, Any], place: str) -> Node:
        node: Node = {"type": "array", **_counts(schema, "minItems", "maxItems", place)}
        items, prefix = schema.get("items", ANY), schema.get("prefixItems", [])
        items_key, prefix_key = "items", "prefixItems"
        if isinstance(items, list):  # as before draft 2020-12
            prefix, items = items, schema.get("additionalItems", ANY)
            items_key, prefix_key = "additionalItems", "items"
        if not isinstance(prefix, list):
            raise InvalidFormat(f"prefixItems {at(place)} must be a list")
        if prefix:
            inner = below(place, prefix_key)
            node["prefixItems"] = [self._normalize(each, below(inner, number)) for number, each in enumerate(prefix)]
        if (items_node := self._normalize(items, below(place, items_key))) != ANY:
            node["items"] = items_node
        if schema.get("uniqueItems") is True:
            node["uniqueItems"] = True
        return NONE if node.get("minItems", 0) > node.get("maxItems", math.inf) else node

    def _objects(self, schema: dict[str, Any], place: str) -> Node:
        node: Node = {"type": "object", **_counts(schema, "minProperties", "maxProperties", place)}
        for keyword in ("properties", "patternProperties"):
            if keyword in schema:
                node[keyword] = self._members(schema[keyword], place, keyword)
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise InvalidFormat(f"required {at(place)} must be a list of names")
        if required:
            node["required"] = [*dict.fromkeys(required)]
        for keyword in ("additionalProperties", "propertyNames"):
            if keyword in schema:
                node[keyword] = self._normalize(schema[keyword], below(place, keyword))
        return NONE if node.get("minProperties", 0) > node.get("maxProperties", math.inf) else node

    def _members(self, schemas: Any, place: str, keyword: str) -> dict[str, Node]:
        if not isinstance(schemas, dict):
            raise InvalidFormat(f"{keyword} {at(place)} must be an object")
        if any(_CONTROL_CHARACTER.search(name) for name in schemas):
            self._enforcement.drop(keyword, place, "has a name with a control character, which is not supported")
        return {name: self._normalize(each, below(place, keyword, name)) for name, each in schemas.items()}


def _numbers(kind: str, schema: dict[str, Any], place: str) -> Node:
    node: Node = {"type": kind}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        value = schema.get(keyword)
        if keyword.startswith("exclusive") and isinstance(value, bool):  # as in draft 4
            inclusive = keyword.removeprefix("exclusive").lower()
            if value and inclusive in node:
                node[keyword] = node.pop(inclusive)
        elif keyword in schema:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidFormat(f"{keyword} {at(place)} must be a number")
            node[keyword] = value
    if node.get("multipleOf", 1) <= 0:
        raise InvalidFormat(f"multipleOf {at(place)} must be greater than 0")
    return merged_numbers(node, {}, node)


def _counts(schema: dict[str, Any], minimum: str, maximum: str, place: str) -> dict[str, int]:
    """Return the bounds of a length, except a minimum of 0."""
    found = {}
    for keyword in (minimum, maximum):
        if keyword in schema:
            value = schema[keyword]
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
                raise InvalidFormat(f"{keyword} {at(place)} must be an integer of at least 0")
            if keyword == minimum and value > MAX_COUNT:
                raise InvalidFormat(f"{keyword} {at(place)} must be at most {MAX_COUNT}")
            if (value and value <= MAX_COUNT) or (value == 0 and keyword == maximum):
                found[keyword] = int(value)
    return found
