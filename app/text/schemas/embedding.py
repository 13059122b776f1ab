"""Objects with patterns of names, which llguidance translates as a whole."""

from __future__ import annotations

from typing import Any

from app.text.schemas.enforcement import Enforcement, below
from app.text.schemas.expressions import embedded_json
from app.text.schemas.formats import FORMATS
from app.text.schemas.nodes import Node

MAX_EXACT_INTEGER = 1 << 53  # llguidance reads numbers as doubles
MAX_INTEGER = 10**15 - 1  # without bounds
_NOT_TRANSLATED = ("uniqueItems", "propertyNames", "minProperties", "maxProperties")


def embedded_object(node: Node, definitions: dict[str, Node], enforcement: Enforcement, place: str) -> str:
    """Return an expression for the objects of a node. Raises `InvalidFormat`."""
    translation = _Translation(enforcement)
    shared = {name: translation.part(each, below("$defs", name)) for name, each in definitions.items()}
    schema = translation.part(node, place)
    return embedded_json({**schema, **({"$defs": shared} if shared else {})})


class _Translation:
    """Translation of nodes into schemas that llguidance enforces as they are."""

    def __init__(self, enforcement: Enforcement) -> None:
        self._enforcement = enforcement

    def part(self, node: Any, place: str) -> Any:
        """Return the schema of a node."""
        if not isinstance(node, dict):
            return node
        schema: Node = {}
        for keyword, value in node.items():
            self._enforcement.step()
            inner = below(place, keyword)
            if keyword in _NOT_TRANSLATED:
                self._enforcement.drop(keyword, place, "is not enforced beside or inside of patternProperties")
            elif keyword in ("properties", "patternProperties"):
                schema[keyword] = {name: self.part(each, below(inner, name)) for name, each in value.items()}
            elif keyword in ("anyOf", "prefixItems"):
                schema[keyword] = [self.part(each, below(inner, number)) for number, each in enumerate(value)]
            elif keyword in ("items", "additionalProperties"):
                schema[keyword] = self.part(value, inner)
            elif keyword == "format":
                schema["allOf"] = [*schema.get("allOf", []), {"pattern": f"^(?:{FORMATS[value]})$"}]
            elif keyword == "allOf":
                schema["allOf"] = [*schema.get("allOf", []), *value]
            else:
                self._check_exact(keyword, value, place)
                schema[keyword] = value
        if schema.get("type") == "integer":
            schema = {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER, **schema}
        return schema

    def _check_exact(self, keyword: str, value: Any, place: str) -> None:
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, int | float) and abs(each) > MAX_EXACT_INTEGER for each in values):
            self._enforcement.drop(keyword, place, "has a number beyond 2**53 beside or inside of patternProperties")
