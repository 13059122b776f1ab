"""Search of keywords that a grammar cannot enforce."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from app.text.schemas.enforcement import at, below
from app.text.schemas.nodes import Node

_NODES = ("items", "additionalProperties", "propertyNames", "not")
_LISTS = ("anyOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs")


def unsupported(schema: Node, supported: Collection[str]) -> str | None:
    """Return the first keyword of a schema in normal form that is not supported, with its place; None without one.

    An example is "pattern at properties.a". `$defs` is always supported.
    """
    return next(
        (f"{keyword} {at(place)}" for keyword, place in _keywords(schema, "") if keyword not in supported), None
    )


def _keywords(node: object, place: str) -> Iterator[tuple[str, str]]:
    """Return the keywords of a node and the nodes in it, with their places."""
    if not isinstance(node, dict):
        return
    for keyword, value in node.items():
        if keyword != "$defs":
            yield keyword, place
        if keyword in _NODES:
            yield from _keywords(value, below(place, keyword))
        elif keyword in _LISTS:
            for number, each in enumerate(value):
                yield from _keywords(each, below(place, keyword, number))
        elif keyword in _MAPS:
            for name, each in value.items():
                yield from _keywords(each, below(place, keyword, name))
