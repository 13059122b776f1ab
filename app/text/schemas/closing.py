"""Last step of the normal form: objects are closed, and keywords on whole objects and arrays are made explicit."""

from __future__ import annotations

import math
from typing import Any

from app.text.schemas.definitions import Definitions
from app.text.schemas.enforcement import Enforcement, below
from app.text.schemas.merging import Merger
from app.text.schemas.nodes import ANY, NONE, Node, distinct, reference, referenced_name, union

MAX_UNIQUE_VALUES = 32  # of the items of an array with uniqueItems
STRING: Node = {"type": "string"}


def closed_form(root: Node, definitions: Definitions, merger: Merger, enforcement: Enforcement) -> Node:
    """Return the last form of a node, with the definitions that it refers to in `$defs`."""
    return _Closing(definitions, merger, enforcement).root(root)


class _Closing:
    """Translation of nodes. In the result, false stands for `NONE` as additionalProperties, items and properties."""

    def __init__(self, definitions: Definitions, merger: Merger, enforcement: Enforcement) -> None:
        self._definitions = definitions
        self._merger = merger
        self._enforcement = enforcement
        self._pending: list[str] = []
        self._closed: dict[str, Node] = {}

    def root(self, node: Node) -> Node:
        """Return the last form of the whole schema."""
        closed = self._node(node, "")
        while self._pending:
            name = self._pending.pop()
            self._closed[name] = self._node(self._resolved(reference(name)), below("$defs", name))
        return {**closed, "$defs": self._closed} if self._closed else closed

    def _resolved(self, node: Node) -> Node:
        found = self._definitions.resolve(node)
        assert found is not None, "all definitions are known"
        return found

    def _node(self, node: Node, place: str) -> Node:
        self._enforcement.step()
        if (name := referenced_name(node)) is not None:
            return self._reference(node, name)
        if "anyOf" in node:
            inner = below(place, "anyOf")
            return union([self._node(each, below(inner, number)) for number, each in enumerate(node["anyOf"])])
        match node.get("type"):
            case "array":
                return self._array(node, place)
            case "object":
                return self._object(node, place)
        return node

    def _reference(self, node: Node, name: str) -> Node:
        if self._resolved(node) in (ANY, NONE):
            return self._resolved(node)
        while (following := referenced_name(self._definitions.nodes[name] or ANY)) is not None:
            name = following
        if name not in self._closed:
            self._closed[name] = ANY  # its place in the order
            self._pending.append(name)
        return reference(name)

    def _array(self, node: Node, place: str) -> Node:
        minimum, maximum = node.get("minItems", 0), node.get("maxItems", math.inf)
        inner = below(place, "prefixItems")
        prefix = [self._node(each, below(inner, number)) for number, each in enumerate(node.get("prefixItems", []))]
        items = self._node(node.get("items", ANY), below(place, "items"))
        if NONE in prefix:
            maximum = min(maximum, prefix.index(NONE))
        elif items == NONE:
            maximum = min(maximum, len(prefix))
        closed: Node = {"type": "array"}
        if node.get("uniqueItems") and maximum > 1:
            values = None if prefix else self._few_values(items)
            if values is None:
                self._enforcement.drop("uniqueItems", place, f"is only enforced for up to {MAX_UNIQUE_VALUES} values")
            else:
                items, maximum = {"enum": values}, min(maximum, len(values))
                closed |= {"uniqueItems": True} if maximum > 1 else {}
        if minimum > maximum:
            return NONE
        bounds = {"minItems": minimum or None, "maxItems": None if math.isinf(maximum) else maximum}
        closed |= {key: value for key, value in bounds.items() if value is not None}
        if prefix := prefix[: min(maximum, len(prefix))]:
            closed["prefixItems"] = prefix
        if items != ANY:
            closed["items"] = items if items != NONE else False
        return closed

    def _few_values(self, node: Node) -> list[Any] | None:
        """Return the values that a node allows if they are few and neither arrays nor objects; otherwise None."""
        found = self._resolved(node)
        values: list[Any] = []
        for each in found.get("anyOf", (found,)):
            fixed: dict[Any, list[Any]] = {"boolean": [False, True], "null": [None]}
            scalars = fixed.get(each.get("type"), each.get("enum"))
            if scalars is None or "pattern" in each or any(isinstance(value, list | dict) for value in scalars):
                return None
            values += scalars
        values = distinct(values)
        return values if len(values) <= MAX_UNIQUE_VALUES else None

    def _object(self, node: Node, place: str) -> Node:
        if node.get("maxProperties") == 0:
            return NONE if node.get("required") else {"type": "object", "additionalProperties": False}
        is_declared = "properties" in node or "patternProperties" in node
        others = node.get("additionalProperties", NONE if is_declared else ANY)
        others = self._node(others, below(place, "additionalProperties"))
        members = {
            name: self._node(each, below(place, "properties", name))
            for name, each in node.get("properties", {}).items()
        }
        patterns = {
            name: self._node(each, below(place, "patternProperties", name))
            for name, each in node.get("patternProperties", {}).items()
        }
        required = node.get("required", [])
        for name in required:
            if name not in members and patterns:
                self._enforcement.drop("patternProperties", place, "cannot be combined with a required name")
            # A name that is required and not described has any value, unless the schema itself has closed the object.
            members.setdefault(name, others if "additionalProperties" in node else ANY)
        names, members, others = self._names(node.get("propertyNames"), members, others, place)
        if any(members[name] == NONE for name in required):
            return NONE
        if others == NONE:
            members = {name: each for name, each in members.items() if each != NONE}
        closed: Node = {"type": "object"}
        if members:
            closed["properties"] = {name: each if each != NONE else False for name, each in members.items()}
        if patterns:
            closed["patternProperties"] = {name: each if each != NONE else False for name, each in patterns.items()}
        if names is not None:
            closed["propertyNames"] = names
        if required:
            closed["required"] = required
        if others != ANY or members or patterns:
            closed["additionalProperties"] = others if others != NONE else False
        return self._with_counts(closed, node, place)

    def _names(
        self, names: Node | None, members: dict[str, Node], others: Node, place: str
    ) -> tuple[Node | None, dict[str, Node], Node]:
        """Return the schema of names as far as it must be kept, the members, and the schema of others.

        Enumerated names become members.
        """
        if names is None:
            return None, members, others
        allowed = self._resolved(self._merger.merge(names, STRING, place))
        if "pattern" in allowed and members:
            self._enforcement.drop("propertyNames", place, "cannot be combined with properties")
            return None, members, others
        members = {name: each if self._merger.admits(allowed, name) else NONE for name, each in members.items()}
        if allowed == NONE:
            return None, members, NONE
        if "enum" in allowed and "type" not in allowed:
            return None, {**dict.fromkeys(allowed["enum"], others), **members}, NONE
        if allowed == STRING or others == NONE:
            return None, members, others
        if members or "anyOf" in allowed:
            self._enforcement.drop("propertyNames", place, "cannot be combined with properties or alternatives")
            return None, members, others
        return allowed, members, others

    def _with_counts(self, closed: Node, node: Node, place: str) -> Node:
        """Return an object with its minimal and maximal number of members, as far as they can be enforced.

        Names that a schema does not list may be repeated, so that two of them may be one member.
        """
        minimum, maximum = node.get("minProperties", 0), node.get("maxProperties", math.inf)
        listed = [name for name, each in closed.get("properties", {}).items() if each is not False]
        required = closed.get("required", [])
        is_open = closed.get("additionalProperties", ANY) is not False or "patternProperties" in closed
        if len(required) > maximum or (not is_open and len(listed) < minimum):
            return NONE
        if minimum > len(required):
            if not is_open and minimum == len(listed):
                closed["required"] = listed
            elif minimum == 1 and "patternProperties" not in closed:
                closed["minProperties"] = 1
            else:
                self._enforcement.drop("minProperties", place, "greater than 1 is not enforced, as names may repeat")
        if maximum < (math.inf if is_open else len(listed)):
            if len(listed) == len(required) and "patternProperties" not in closed:
                closed["maxProperties"] = maximum
            else:
                self._enforcement.drop("maxProperties", place, "is not enforced beside optional properties")
        return closed
