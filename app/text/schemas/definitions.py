"""Definitions of a normal form while it is built: nodes by name, of which some are not known yet."""

from __future__ import annotations

import re

from app.text.schemas.errors import InvalidFormat
from app.text.schemas.nodes import Node, reference, referenced_name

MAX_COPIED_PARTS = 12  # of a definition that is copied where it is used
MAX_CHAIN = 64  # references that lead to references
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


class Definitions:
    """Nodes by name; None for a node that is being built."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node | None] = {}
        self._recursive: set[str] = set()

    def begin(self, suggestion: str) -> str:
        """Return a new name, similar to the suggested one, for a node that is now built."""
        name = base = _NOT_IN_NAMES.sub("_", suggestion)[-64:] or "root"
        number = 1
        while name in self.nodes:
            number += 1
            name = f"{base}_{number}"
        self.nodes[name] = None
        return name

    def use(self, name: str) -> Node:
        """Return a reference to a definition, or a copy of it if it is small."""
        node = self.nodes[name]
        if node is None:
            self._recursive.add(name)
        elif name not in self._recursive and _parts(node, MAX_COPIED_PARTS) >= 0:
            return node
        return reference(name)

    def resolve(self, node: Node) -> Node | None:
        """Return the node to which references lead; None if it is not known yet. Raises `InvalidFormat`."""
        found: Node | None = node
        for _ in range(MAX_CHAIN):
            if found is None or (name := referenced_name(found)) is None:
                return found
            found = self.nodes[name]
        raise InvalidFormat("$ref leads to itself only")


def _parts(node: object, left: int) -> int:
    """Return the parts that remain of `left` after those of a node; negative if it has more."""
    if left < 0:
        return left
    if isinstance(node, dict):
        for value in node.values():
            left = _parts(value, left - 1)
    elif isinstance(node, list):
        for value in node:
            left = _parts(value, left - 1)
    return left
