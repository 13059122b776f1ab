"""Proof that two nodes have no value in common, for `oneOf`."""

from __future__ import annotations

import math
from typing import Any

from app.text.schemas.definitions import Definitions
from app.text.schemas.enforcement import Enforcement
from app.text.schemas.merging import Merger
from app.text.schemas.nodes import ANY, NONE, Node, canonical

MAX_DEPTH = 8  # of properties in properties


class Disjointness:
    """Comparison of nodes that may refer to definitions."""

    def __init__(self, definitions: Definitions, merger: Merger, enforcement: Enforcement) -> None:
        self._definitions = definitions
        self._merger = merger
        self._enforcement = enforcement

    def are_disjoint(self, left: Node, right: Node, depth: int = 0) -> bool:
        """Return whether no value satisfies both nodes; False if that is not known."""
        self._enforcement.step()
        first, second = self._definitions.resolve(left), self._definitions.resolve(right)
        if first is None or second is None or depth > MAX_DEPTH:
            return False
        if NONE in (first, second):
            return True
        if ANY in (first, second):
            return False
        if "anyOf" in first or "anyOf" in second:
            lefts, rights = first.get("anyOf", (first,)), second.get("anyOf", (second,))
            return all(self.are_disjoint(each, other, depth + 1) for each in lefts for other in rights)
        if "enum" in first and "enum" in second:
            self._enforcement.step((len(first["enum"]) + len(second["enum"])) // 4)
            return not {*map(canonical, first["enum"])} & {*map(canonical, second["enum"])}
        for node, other in ((first, second), (second, first)):
            if "enum" in node:
                return not any(self._merger.admits(other, value) for value in node["enum"])
        return self._are_disjoint_typed(first, second, depth)

    def _are_disjoint_typed(self, left: Node, right: Node, depth: int) -> bool:
        types = {left["type"], right["type"]}
        if len(types) == 2 and types != {"integer", "number"}:
            return True
        match left["type"]:
            case "integer" | "number":
                return _are_apart(left, right)
            case "string":
                return _lengths_apart(left, right, "minLength", "maxLength")
            case "array":
                return _lengths_apart(left, right, "minItems", "maxItems")
            case "object":
                return self._have_disjoint_member(left, right, depth)
        return False

    def _have_disjoint_member(self, left: Node, right: Node, depth: int) -> bool:
        """Return whether a required member of one object cannot be in the other."""
        if "patternProperties" in left or "patternProperties" in right:
            return False
        names = [*dict.fromkeys([*left.get("required", ()), *right.get("required", ())])]
        return any(self.are_disjoint(_member(left, name), _member(right, name), depth + 1) for name in names)


def _member(node: Node, name: str) -> Node:
    found: Node = node.get("properties", {}).get(name, node.get("additionalProperties", ANY))
    return found


def _are_apart(left: Node, right: Node) -> bool:
    """Return whether one range of numbers is below the other."""

    def low(node: Node) -> tuple[Any, bool]:
        return max((node.get("minimum", -math.inf), False), (node.get("exclusiveMinimum", -math.inf), True))

    def high(node: Node) -> tuple[Any, bool]:
        return min((node.get("maximum", math.inf), True), (node.get("exclusiveMaximum", math.inf), False))

    def is_below(node: Node, other: Node) -> bool:
        (top, is_top_in), (bottom, is_bottom_out) = high(node), low(other)
        return bool(top < bottom or (top == bottom and (not is_top_in or is_bottom_out)))

    return is_below(left, right) or is_below(right, left)


def _lengths_apart(left: Node, right: Node, minimum: str, maximum: str) -> bool:
    return any(node.get(maximum, math.inf) < other.get(minimum, 0) for node, other in ((left, right), (right, left)))
