"""Intersection of nodes: the values that both allow."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

from app.text.schemas.definitions import Definitions
from app.text.schemas.enforcement import Enforcement, below
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.nodes import (
    ANY,
    NONE,
    Node,
    are_same,
    canonical,
    exact,
    is_of_type,
    is_within,
    reference,
    referenced_name,
    union,
)  # fmt: skip

_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


class Merger:
    """Merging of nodes that may refer to definitions, also to those which are not known yet."""

    def __init__(self, definitions: Definitions, enforcement: Enforcement) -> None:
        self._definitions = definitions
        self._enforcement = enforcement
        self._merged: dict[tuple[str, str], str] = {}  # names of merged definitions
        self._pending: list[tuple[str, str, Node, str]] = []
        self._is_unknown = False  # a definition that is not known yet was needed

    def merge(self, left: Node, right: Node, place: str) -> Node:
        """Return a node for the values that both nodes allow; properties of the left one come first."""
        self._enforcement.step()
        if NONE in (left, right):
            return NONE
        if left == ANY:
            return right
        if right == ANY or are_same(left, right):
            return left
        for node, other in ((left, right), (right, left)):
            if (name := referenced_name(node)) is not None:
                return self._merge_reference(name, other, place, is_left=node is left)
        if "anyOf" in left or "anyOf" in right:
            lefts, rights = left.get("anyOf", (left,)), right.get("anyOf", (right,))
            return union([self.merge(each, other, place) for each in lefts for other in rights])
        if "type" not in left:
            return self._filter(left["enum"], right, place)
        if "type" not in right:
            return self._filter(right["enum"], left, place)
        return self._merge_typed(left, right, place)

    def finish(self) -> None:
        """Merge with the definitions that were not known before. Raises `InvalidFormat`."""
        while self._pending:
            before = len(self._pending)
            pending, self._pending = self._pending, []
            for merged, name, other, place in pending:
                target = self._definitions.resolve(reference(name))
                if target is None:
                    self._pending.append((merged, name, other, place))
                else:
                    self._definitions.nodes[merged] = self.merge(target, other, place)
            if len(self._pending) == before:
                raise InvalidFormat("$ref leads to itself only")

    def _merge_reference(self, name: str, other: Node, place: str, *, is_left: bool) -> Node:
        key = name, json.dumps(other)
        self._enforcement.step(1 + len(key[1]) // 64)
        if key in self._merged:
            return self._definitions.use(self._merged[key])
        merged = self._merged[key] = self._definitions.begin(f"{name}_merged")
        target = self._definitions.resolve(reference(name))
        if target is None:
            self._pending.append((merged, name, other, place))
        else:
            nodes = (target, other) if is_left else (other, target)
            self._definitions.nodes[merged] = self.merge(*nodes, place)
        return self._definitions.use(merged)

    def _filter(self, values: list[Any], node: Node, place: str) -> Node:
        """Return a node for the values that a node allows."""
        self._enforcement.step(len(values))
        if "enum" in node:
            allowed = {canonical(value) for value in node["enum"]}
            values = [value for value in values if canonical(value) in allowed]
        if "type" in node:
            values = [value for value in values if is_of_type(value, node["type"]) and is_within(value, node)]
            if node["type"] in ("array", "object"):
                self._is_unknown = False
                values = [value for value in values if self.admits(node, value)]
                if self._is_unknown:
                    self._enforcement.drop("enum", place, "has values of a recursive schema")
        if values and "pattern" in node:
            return {**node, "enum": values}
        return {"enum": values} if values else NONE

    def admits(self, node: Node, value: Any) -> bool:
        """Return whether a node allows a value; a pattern of a string counts as satisfied."""
        self._enforcement.step()
        found = self._definitions.resolve(node)
        if found is None or found in (ANY, NONE):
            self._is_unknown |= found is None
            return found != NONE
        if "anyOf" in found:
            return any(self.admits(each, value) for each in found["anyOf"])
        self._enforcement.step(len(found.get("enum", ())) // 4)
        if "enum" in found and canonical(value) not in map(canonical, found["enum"]):
            return False
        if "type" in found and not (is_of_type(value, found["type"]) and is_within(value, found)):
            return False
        if isinstance(value, list):
            return self._admits_items(found, value)
        return not isinstance(value, dict) or self._admits_members(found, value)

    def _admits_items(self, node: Node, value: list[Any]) -> bool:
        prefix = node.get("prefixItems", [])
        items = [*prefix, *([node.get("items", ANY)] * (len(value) - len(prefix)))]
        return (
            node.get("minItems", 0) <= len(value) <= node.get("maxItems", len(value))
            and (not node.get("uniqueItems") or len(set(map(canonical, value))) == len(value))
            and all(self.admits(each, item) for each, item in zip(items, value, strict=False))
        )

    def _admits_members(self, node: Node, value: dict[str, Any]) -> bool:
        properties, others = node.get("properties", {}), node.get("additionalProperties", ANY)
        return (
            node.get("minProperties", 0) <= len(value) <= node.get("maxProperties", len(value))
            and value.keys() >= set(node.get("required", ()))
            and all(self.admits(properties.get(name, others), each) for name, each in value.items())
        )

    def _merge_typed(self, left: Node, right: Node, place: str) -> Node:
        types = {left["type"], right["type"]}
        if len(types) == 2 and types != {"integer", "number"}:
            return NONE
        kind = "integer" if "integer" in types else left["type"]
        merged = {**left, **right, "type": kind}
        match kind:
            case "integer" | "number":
                return merged_numbers(left, right, merged)
            case "string":
                return self._merge_strings(left, right, merged, place)
            case "array":
                return self._merge_arrays(left, right, merged, place)
            case "object":
                return self._merge_objects(left, right, merged, place)
        return merged

    def _merge_strings(self, left: Node, right: Node, merged: Node, place: str) -> Node:
        _tighten(left, right, merged, "minLength", "maxLength")
        if "enum" in left and "enum" in right:
            merged["enum"] = [value for value in left["enum"] if value in right["enum"]]
        patterns = [*_patterns(left), *(each for each in _patterns(right) if each not in _patterns(left))]
        merged.pop("allOf", None)
        if patterns:
            merged["pattern"] = patterns[0]
        if patterns[1:]:
            merged["allOf"] = [{"pattern": each} for each in patterns[1:]]
        if "enum" in merged:
            others = {key: value for key, value in merged.items() if key != "enum"}
            return self._filter(merged["enum"], others, place)
        return NONE if merged.get("minLength", 0) > merged.get("maxLength", math.inf) else merged

    def _merge_arrays(self, left: Node, right: Node, merged: Node, place: str) -> Node:
        _tighten(left, right, merged, "minItems", "maxItems")
        prefixes = left.get("prefixItems", []), right.get("prefixItems", [])
        rests = left.get("items", ANY), right.get("items", ANY)
        pairs = [
            (_item(prefixes[0], at, rests[0]), _item(prefixes[1], at, rests[1]))
            for at in range(max(map(len, prefixes)))
        ]
        merged.pop("prefixItems", None)
        if pairs:
            inner = below(place, "prefixItems")
            merged["prefixItems"] = [
                self.merge(first, second, below(inner, at)) for at, (first, second) in enumerate(pairs)
            ]
        if "items" in merged:
            merged["items"] = self.merge(*rests, below(place, "items"))
        return NONE if merged.get("minItems", 0) > merged.get("maxItems", math.inf) else merged

    def _merge_objects(self, left: Node, right: Node, merged: Node, place: str) -> Node:
        _tighten(left, right, merged, "minProperties", "maxProperties")
        if required := [*dict.fromkeys([*left.get("required", ()), *right.get("required", ())])]:
            merged["required"] = required
        self._check_names(left, right, place)
        ours, theirs = left.get("properties", {}), right.get("properties", {})
        rests = left.get("additionalProperties", ANY), right.get("additionalProperties", ANY)
        if names := [*dict.fromkeys([*ours, *theirs])]:
            merged["properties"] = {
                name: self.merge(ours.get(name, rests[0]), theirs.get(name, rests[1]), below(place, "properties", name))
                for name in names
            }
        if "additionalProperties" in merged:
            merged["additionalProperties"] = self.merge(*rests, below(place, "additionalProperties"))
        return NONE if merged.get("minProperties", 0) > merged.get("maxProperties", math.inf) else merged

    def _check_names(self, left: Node, right: Node, place: str) -> None:
        """Drop keywords on names that would have to be matched with names of the other node."""
        for keyword in ("patternProperties", "propertyNames"):
            for node, other in ((left, right), (right, left)):
                others = {"properties", "patternProperties", "propertyNames", "additionalProperties"} & other.keys()
                if keyword in node and others and node.get(keyword) != other.get(keyword):
                    self._enforcement.drop(keyword, place, "cannot be combined with properties of another schema")


def merged_numbers(left: Node, right: Node, merged: Node) -> Node:
    """Return the node of both nodes' numbers: with at most one bound on each side, and one multiple."""
    for keywords, sign in ((_LOWER, 1), (_UPPER, -1)):
        # Of equal bounds, the exclusive one is tighter.
        bounds = [(sign * node[key], key.startswith("ex"), key) for node in (left, right) for key in keywords
                  if key in node]  # fmt: skip
        for key in keywords:
            merged.pop(key, None)
        if bounds:
            bound, _, key = max(bounds)
            merged[key] = sign * bound
    multiples = [exact(node["multipleOf"]) for node in (left, right) if "multipleOf" in node]
    if len(multiples) == 2:
        numerator = math.lcm(*(each.numerator for each in multiples))
        multiple = Fraction(numerator, math.gcd(*(each.denominator for each in multiples)))
        merged["multipleOf"] = multiple.numerator if multiple.denominator == 1 else float(multiple)
    return normal_number(merged)


def normal_number(node: Node) -> Node:
    """Return a node with integers as bounds if it is of integers; `NONE` if no number is between its bounds."""
    if node["type"] == "integer":
        node = {**node}
        if "exclusiveMinimum" in node:
            node["minimum"] = math.floor(node.pop("exclusiveMinimum")) + 1
        if "exclusiveMaximum" in node:
            node["maximum"] = math.ceil(node.pop("exclusiveMaximum")) - 1
        for key, to_integer in (("minimum", math.ceil), ("maximum", math.floor)):
            if key in node:
                node[key] = to_integer(node[key])
        if "multipleOf" in node and (multiple := exact(node.pop("multipleOf")).numerator) != 1:
            node["multipleOf"] = multiple
    low, high = (next((node[key] for key in keys if key in node), None) for keys in (_LOWER, _UPPER))
    is_open = "exclusiveMinimum" in node or "exclusiveMaximum" in node
    return NONE if low is not None and high is not None and (low > high or (low == high and is_open)) else node


def _item(prefix: list[Node], at: int, rest: Node) -> Node:
    return prefix[at] if at < len(prefix) else rest


def _patterns(node: Node) -> list[str]:
    first = [node["pattern"]] if "pattern" in node else []
    return [*first, *(each["pattern"] for each in node.get("allOf", ()))]


def _tighten(left: Node, right: Node, merged: Node, minimum: str, maximum: str) -> None:
    """Set the tighter ones of two bounds."""
    for key, tighter in ((minimum, max), (maximum, min)):
        if key in left and key in right:
            merged[key] = tighter(left[key], right[key])
