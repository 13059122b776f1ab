"""Nodes of the normal form, and JSON values that they allow.

A node is one of: {} for any value, {"not": {}} for none, {"$ref": "#/$defs/NAME"}, {"anyOf": [nodes]},
{"enum": [values]}, or {"type": ...} with one type and keywords of that type only.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from fractions import Fraction
from typing import Any

Node = dict[str, Any]

ANY: Node = {}
NONE: Node = {"not": {}}
TYPES = ("null", "boolean", "number", "string", "array", "object")
KEYWORDS = {
    "null": (),
    "boolean": (),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "additionalItems", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
               "minProperties", "maxProperties"),
}  # fmt: skip
DEFINITIONS = "#/$defs/"


def reference(name: str) -> Node:
    """Return a reference to a definition."""
    return {"$ref": DEFINITIONS + name}


def referenced_name(node: Node) -> str | None:
    """Return the name of the definition to which a node refers; None for other nodes."""
    found = node.get("$ref")
    return found.removeprefix(DEFINITIONS) if isinstance(found, str) else None


def union(nodes: Iterable[Node]) -> Node:
    """Return a node for the values of any of the nodes."""
    others: list[Node] = []
    values: list[Any] = []
    for node in nodes:
        for each in node.get("anyOf", (node,)):
            if each == ANY:
                return ANY
            if "enum" in each and "type" not in each:
                values += each["enum"]
            elif each != NONE and not any(are_same(each, other) for other in others[-8:]):
                others.append(each)
    if values:
        others.append({"enum": distinct(values)})
    return {"anyOf": others} if len(others) > 1 else others[0] if others else NONE


def are_same(node: Node, other: Node) -> bool:
    """Return whether two nodes are the same. 1, 1.0 and true are different in them, other than in Python."""
    return node == other and json.dumps(node) == json.dumps(other)


def type_of(value: Any) -> str:
    """Return the JSON type of a value; integer for 1.0."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    names = {str: "string", dict: "object", list: "array", type(None): "null"}
    return names[type(value)]


def is_of_type(value: Any, name: str) -> bool:
    """Return whether a value has a type; integers are numbers."""
    given = type_of(value)
    return given == name or (given, name) == ("integer", "number")


def canonical(value: Any) -> Hashable:
    """Return a key that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return ("array", *map(canonical, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, canonical(each)) for key, each in value.items()))
    kind = type_of(value)
    return ("number" if kind == "integer" else kind, value)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the values without those that equal an earlier one."""
    found: dict[Hashable, Any] = {}
    for value in values:
        found.setdefault(canonical(value), value)
    return list(found.values())


def is_within(value: Any, node: Node) -> bool:
    """Return whether a number or a string satisfies bounds, multiples and lengths of a node of its type."""
    if isinstance(value, str):
        return bool(node.get("minLength", 0) <= len(value) <= node.get("maxLength", len(value)))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return bool(
        node.get("minimum", value) <= value <= node.get("maximum", value)
        and not ("exclusiveMinimum" in node and value <= node["exclusiveMinimum"])
        and not ("exclusiveMaximum" in node and value >= node["exclusiveMaximum"])
        and (exact(value) % exact(node["multipleOf"]) == 0 if "multipleOf" in node else True)
    )


def exact(number: float) -> Fraction:
    """Return the number that the shortest decimal form of a float stands for."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))
