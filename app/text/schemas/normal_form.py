"""Normal form of a JSON Schema: one node as `nodes` describes it, with the definitions that it refers to.

`allOf`, `oneOf`, siblings of `$ref`, lists of types and the forms of older drafts and of OpenAPI are replaced, and
annotations are left out. An object that has properties, and does not state whether it may have others, may not.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from app.text.schemas.closing import closed_form
from app.text.schemas.definitions import Definitions
from app.text.schemas.disjoint import Disjointness
from app.text.schemas.enforcement import Enforcement, at, below
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.merging import Merger
from app.text.schemas.nodes import ANY, KEYWORDS, NONE, TYPES, Node, canonical, distinct, union
from app.text.schemas.references import References
from app.text.schemas.typed import TypedNodes

MAX_DEPTH = 64  # of schemas in schemas
MAX_FOLLOWED_DEPTH = 32  # from which on definitions are translated later instead of where they are used
_DROPPED = ("not", "if", "$dynamicRef", "$recursiveRef")
_OWN = {"type", "enum", "const", "nullable", *(keyword for keywords in KEYWORDS.values() for keyword in keywords)}
_OWN |= {"unevaluatedItems", "contains", "dependentRequired", "dependentSchemas", "dependencies"}


def normal_form(schema: dict[str, Any] | bool, *, is_strict: bool, lenient: Collection[str] = ()) -> Node:
    """Return the normal form of a schema.

    is_strict: a keyword that cannot be enforced is an error; otherwise it is left out. lenient: keywords that are left
    out nevertheless. Raises `InvalidFormat`, which names the keyword and its place.
    """
    if isinstance(schema, bool):
        return ANY if schema else NONE
    _check_numbers(schema)
    enforcement = Enforcement(is_strict=is_strict, lenient=lenient)
    return _Normalizer(schema, enforcement).root()


def _check_numbers(value: Any) -> None:
    """Raise `InvalidFormat` for a number in a schema that is beyond the range of computations."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict | list):
            pending += each.values() if isinstance(each, dict) else each
        elif isinstance(each, int | float) and not abs(each) <= sys.float_info.max:
            raise InvalidFormat("numbers in a schema must be between -1.8e308 and 1.8e308")


class _Normalizer:
    """Translation of one document."""

    def __init__(self, root: dict[str, Any], enforcement: Enforcement) -> None:
        self._root = root
        self._enforcement = enforcement
        self._references = References(root, enforcement)
        self._definitions = Definitions()
        self._merger = Merger(self._definitions, enforcement)
        self._disjointness = Disjointness(self._definitions, self._merger, enforcement)
        self._typed = TypedNodes(self._node, enforcement)
        self._names: dict[int, str] = {}  # of definitions, by the identity of their schema
        self._pending: list[tuple[str, dict[str, Any], str]] = []  # definitions that are translated later
        self._depth = 0

    def root(self) -> Node:
        """Return the normal form of the document."""
        node = self._defined(self._root, "")
        while self._pending:
            name, schema, place = self._pending.pop()
            self._definitions.nodes[name] = self._node(schema, place)
        self._merger.finish()
        found = self._definitions.resolve(node)
        assert found is not None
        return closed_form(found, self._definitions, self._merger, self._enforcement)

    def _node(self, schema: Any, place: str) -> Node:
        """Return the node of a schema; its objects are not closed yet."""
        if isinstance(schema, bool):
            return ANY if schema else NONE
        if not isinstance(schema, dict):
            raise InvalidFormat(f"the schema {at(place)} must be an object or a boolean")
        self._enforcement.step()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidFormat(f"the schema is nested more than {MAX_DEPTH} levels deep")
        node = self._combined(schema, place)
        self._depth -= 1
        return node

    def _combined(self, schema: dict[str, Any], place: str) -> Node:
        """Return the intersection of all parts of a schema, in their order."""
        node, is_own_done = ANY, False
        for keyword in schema:
            if keyword in _OWN and not is_own_done:
                is_own_done = True
                node = self._merger.merge(node, self._own(schema, place), place)
            elif keyword == "allOf":
                for number, each in enumerate(_schemas(schema, keyword, place)):
                    part = self._node(each, below(place, keyword, number))
                    node = self._merger.merge(node, part, place)
            elif keyword == "$ref":
                node = self._merger.merge(node, self._referenced(schema, place), place)
            elif keyword == "anyOf":
                node = self._merger.merge(node, union(self._alternatives(schema, keyword, place)), place)
            elif keyword in _DROPPED and not (keyword == "not" and schema[keyword] in ({}, True)):
                self._enforcement.drop(keyword, place)
            elif keyword == "not":
                node = NONE
        if "oneOf" in schema:
            node = self._one_of(node, schema, place)
        if "unevaluatedProperties" in schema:
            others = self._node(schema["unevaluatedProperties"], below(place, "unevaluatedProperties"))
            node = self._with_others(node, others, place)
        return node

    def _alternatives(self, schema: dict[str, Any], keyword: str, place: str) -> list[Node]:
        schemas = _schemas(schema, keyword, place)
        return [self._node(each, below(place, keyword, number)) for number, each in enumerate(schemas)]

    def _one_of(self, node: Node, schema: dict[str, Any], place: str) -> Node:
        """Return a node merged with alternatives of which exactly one must hold."""
        alternatives = self._alternatives(schema, "oneOf", place)
        discriminator = schema.get("discriminator")
        if isinstance(discriminator, dict) and isinstance(name := discriminator.get("propertyName"), str):
            # A member by which readers distinguish the alternatives is never left out.
            required: Node = {"type": "object", "required": [name]}
            alternatives = [self._merger.merge(each, required, place) for each in alternatives]
        merged = [self._merger.merge(node, each, place) for each in alternatives]
        for number, each in enumerate(merged):
            if not all(self._disjointness.are_disjoint(each, other) for other in merged[:number]):
                self._enforcement.drop("oneOf", place, "has alternatives that may overlap; use anyOf")
                break
        return union(merged)

    def _own(self, schema: dict[str, Any], place: str) -> Node:
        """Return the node of a schema's own keywords."""
        types = _types(schema, place)
        values = _listed_values(schema, place)
        keywords = {keyword for kind in TYPES for keyword in KEYWORDS[kind]}
        if types is None and not (schema.keys() & (_OWN - {"enum", "const", "nullable"} | keywords)):
            node = ANY
        else:
            names = TYPES if types is None else types
            node = union([self._typed.node(name, schema, place) for name in names])
        return node if values is None else self._merger.merge({"enum": values}, node, place)

    def _referenced(self, schema: dict[str, Any], place: str) -> Node:
        if not isinstance(text := schema["$ref"], str):
            raise InvalidFormat(f"$ref {at(place)} must be a text")
        target, target_place = self._references.find(text, schema, place)
        return self._defined(target, target_place) if isinstance(target, dict) else self._node(target, place)

    def _defined(self, schema: dict[str, Any], place: str) -> Node:
        """Return a reference to the node of a schema, or a copy of it if it is small."""
        name = self._names.get(id(schema))
        if name is None:
            name = self._names[id(schema)] = self._definitions.begin(place.rpartition(".")[2])
            if self._depth > MAX_FOLLOWED_DEPTH:
                self._pending.append((name, schema, place))
            else:
                self._definitions.nodes[name] = self._node(schema, place)
        return self._definitions.use(name)

    def _with_others(self, node: Node, others: Node, place: str) -> Node:
        """Return a node whose objects have members of `others` only, apart from those which they list."""
        if "anyOf" in node:
            return union([self._with_others(each, others, place) for each in node["anyOf"]])
        found = self._definitions.resolve(node)
        if found is None:
            self._enforcement.drop("unevaluatedProperties", place, "cannot be combined with recursion")
            return node
        if found is not node:
            return self._with_others(found, others, place)
        if others != ANY and any(isinstance(value, dict) for value in node.get("enum", ())):
            self._enforcement.drop("unevaluatedProperties", place, "cannot be combined with enumerated objects")
        if node == ANY:
            return union([self._with_others({"type": name}, others, place) for name in TYPES])
        return {"additionalProperties": others, **node} if node.get("type") == "object" else node


def _schemas(schema: dict[str, Any], keyword: str, place: str) -> list[Any]:
    found = schema[keyword]
    if not isinstance(found, list) or not found:
        raise InvalidFormat(f"{keyword} {at(place)} must be a list of schemas")
    return found


def _types(schema: dict[str, Any], place: str) -> list[str] | None:
    """Return the types that a schema names; None if it names none."""
    if "type" not in schema:
        return None
    given = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in given:
        if not isinstance(name, str) or name not in KEYWORDS:
            raise InvalidFormat(f"type {at(place)} must be one of {', '.join(KEYWORDS)}, got {str(name)[:40]!r}")
    names = [*dict.fromkeys(given), *(["null"] if schema.get("nullable") is True else [])]
    return [name for name in names if not (name == "integer" and "number" in names)]


def _listed_values(schema: dict[str, Any], place: str) -> list[Any] | None:
    """Return the values that `enum` and `const` allow; None without them."""
    if "enum" not in schema and "const" not in schema:
        return None
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list):
        raise InvalidFormat(f"enum {at(place)} must be a list")
    if "const" in schema:
        values = [value for value in values if canonical(value) == canonical(schema["const"])]
    return distinct(values)
