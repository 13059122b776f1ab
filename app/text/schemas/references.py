"""References inside of one schema: JSON pointers, `$anchor`, and `$id` relative to the enclosing one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from app.text.schemas.enforcement import Enforcement, at
from app.text.schemas.errors import InvalidFormat

_SCHEMAS = ("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then",
            "else", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")


class References:
    """Schemas of a document by the references that lead to them."""

    def __init__(self, root: dict[str, Any], enforcement: Enforcement) -> None:
        self._bases: dict[int, str] = {}  # by the identity of a schema
        self._named: dict[str, Any] = {"": root}  # by absolute address, with $anchor as fragment
        pending: list[tuple[Any, str]] = [(root, "")]
        while pending:
            schema, base = pending.pop()
            enforcement.step()
            if isinstance(identity := schema.get("$id"), str):
                base = _joined(base, identity.removesuffix("#"))
                self._named[base] = schema
            self._bases[id(schema)] = base
            if isinstance(anchor := schema.get("$anchor"), str):
                self._named[f"{base}#{anchor}"] = schema
            pending += ((each, base) for each in _subschemas(schema))

    def find(self, text: str, schema: dict[str, Any], place: str) -> tuple[Any, str]:
        """Return the schema to which `$ref` of a schema leads, and its place. Raises `InvalidFormat`."""
        address, fragment = urldefrag(_joined(self._bases.get(id(schema), ""), text))
        if fragment and not fragment.startswith("/"):
            address, fragment = f"{address}#{fragment}", ""
        found = self._named.get(address)
        names = [unquote(each).replace("~1", "/").replace("~0", "~") for each in fragment.split("/")[1:]]
        for name in names:
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict | bool):
            raise InvalidFormat(f"$ref {at(place)} leads to no part of the schema: {text[:100]!r}")
        return found, ".".join(names)


def _joined(base: str, address: str) -> str:
    """Return an address relative to a base. Raises `InvalidFormat` for one that is not an address."""
    if address.startswith("#"):
        return base + address  # also of a base such as urn:..., which cannot be joined
    try:
        return urljoin(base, address)
    except ValueError as error:
        raise InvalidFormat(f"{address[:100]!r} is not an address: {error}") from None


def _subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for keyword in schema.keys() & {*_SCHEMAS, *_LISTS, *_MAPS}:
        value = schema[keyword]
        if keyword in _MAPS and isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, dict))
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, dict))
        elif isinstance(value, dict):
            yield value
