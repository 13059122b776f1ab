"""Schemas of arguments that are written one by one, between tags or as keyword arguments."""

from __future__ import annotations

from typing import Any

from app.text.schemas.enforcement import Enforcement
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.nodes import ANY, NONE, Node, referenced_name, union
from app.text.schemas.normal_form import normal_form
from app.text.tools.definitions import Tool

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_ENFORCED = ("type", "properties", "required", "additionalProperties", "$defs")


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments; without parameters it has none."""
    return tool.parameters | {"type": "object"} if tool.parameters else NO_PARAMETERS


def object_schema(tool: Tool) -> Node:
    """Return the schema of a tool's arguments as one object in normal form, whose members can be enforced one by one.

    Raises `InvalidFormat` for a strict tool with a schema that relates several members, and for one whose members have
    no names.
    """
    enforcement = Enforcement(is_strict=tool.strict)
    root = normal_form(parameters_of(tool), is_strict=tool.strict)
    definitions = root.get("$defs", {})
    node = resolved(root, definitions)
    if "anyOf" in node:
        enforcement.drop("anyOf", "")
        node = _joined([resolved(each, definitions) for each in node["anyOf"]])
    node = _without_impossible(node)
    for keyword in node:
        if keyword not in _ENFORCED:
            enforcement.drop(keyword, "")
    others = node.get("additionalProperties", True)
    if not node.get("properties") and isinstance(others, dict) and others != ANY:
        enforcement.drop("additionalProperties", "")
    return {key: node[key] for key in _ENFORCED if key in node} | {"$defs": definitions}


def _without_impossible(node: Node) -> Node:
    """Return an object without the members that have no value. Raises `InvalidFormat` if one of them is required."""
    if node == NONE:
        raise InvalidFormat("no value satisfies the schema")
    properties = {name: each for name, each in node.get("properties", {}).items() if each is not False and each != NONE}
    if missing := [name for name in node.get("required", ()) if name not in properties]:
        raise InvalidFormat(f"no value satisfies the schema at properties.{missing[0]}")
    return node | {"properties": properties} if "properties" in node else node


def resolved(node: Node, definitions: dict[str, Node]) -> Node:
    """Return the node to which a node refers, over any number of references."""
    for _ in range(len(definitions) + 1):
        name = referenced_name(node)
        if name is None:
            break
        node = definitions[name]
    return node


def members(schema: Node) -> dict[str, bool]:
    """Return the names of an object's members, and whether each is required."""
    required = schema.get("required", ())
    return {name: name in required for name in schema.get("properties", {})}


def is_open(schema: Node) -> bool:
    """Return whether an object has any members: no names are given, and others are possible."""
    return not schema.get("properties") and schema.get("additionalProperties") is not False


def _joined(alternatives: list[Node]) -> Node:
    """Return one object with the members of all alternatives, of which those are required that all of them require."""
    properties: dict[str, list[Node]] = {}
    for each in alternatives:
        for name, node in each.get("properties", {}).items():
            properties.setdefault(name, []).append(NONE if node is False else node)
    required = [name for name in properties if all(name in each.get("required", ()) for each in alternatives)]
    is_closed = all(each.get("additionalProperties") is False for each in alternatives)
    joined = {name: union(nodes) for name, nodes in properties.items()}
    return {"type": "object", "properties": joined, "required": required, "additionalProperties": not is_closed}
