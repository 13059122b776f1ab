"""Types of arguments in formats that write all values as text: the schema decides which JSON value a text is."""

from __future__ import annotations

import json
from typing import Any

STRING = frozenset({"string"})
ANY = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
MAX_NESTING = 64  # nested references and alternatives in a schema
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}  # as templates in Jinja write them


def argument_types(parameters: dict[str, Any], name: str) -> frozenset[str]:
    """Return the JSON types that argument `name` may have.

    parameters: the schema of all arguments. An argument that is not in it has the type of `additionalProperties`, or is
    a string.
    """
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, dict) else None
    if schema is None:
        schema = parameters.get("additionalProperties")
        if not isinstance(schema, dict):
            return STRING
    return _types(schema, parameters, set(), MAX_NESTING)


def json_value(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value that was written as `text`: itself if it is JSON of one of `types`, otherwise a
    string.
    """
    if types != STRING:
        value = text.strip()
        value = _PYTHON_LITERALS.get(value, value)
        if types & _types_of(value) - STRING:
            return value
    return json.dumps(text, ensure_ascii=False)


def escape(text: str) -> str:
    """Return `text` as it is written inside of a JSON string. The parts of a text can be escaped one by one."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def referenced(reference: str, root: dict[str, Any]) -> Any:
    """Return the schema at a reference such as #/$defs/Color; None if it is not inside of `root`."""
    found: Any = root
    for key in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [reference]:
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _types(schema: Any, root: dict[str, Any], seen: set[str], depth: int) -> frozenset[str]:
    """Return the types that `schema` allows; `ANY` if it does not restrict them or is nested too deeply.

    seen: references that were followed before; they add nothing, so that the work is linear in the schema's size.
    """
    if not isinstance(schema, dict) or depth == 0:
        return ANY
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset({given}) | ({"null"} if schema.get("nullable") is True else set())
    if isinstance(given, list):
        return frozenset(item for item in given if isinstance(item, str))
    if isinstance(reference := schema.get("$ref"), str):
        if reference in seen:
            return frozenset()
        seen.add(reference)
        return _types(referenced(reference, root), root, seen, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schemas := schema.get(key), list) and schemas:
            found = [types for each in schemas if (types := _types(each, root, seen, depth - 1))]
            join = frozenset.intersection if key == "allOf" else frozenset.union
            return join(*found) if found else frozenset()
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    return frozenset().union(*(_types_of(json.dumps(value)) for value in values)) or ANY


def _types_of(text: str) -> frozenset[str]:
    """Return the types of a JSON text, such as integer and number for 5; empty if it is not JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return frozenset()
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        return frozenset({"number", "integer"} if value == value // 1 else {"number"})
    names = {str: "string", dict: "object", list: "array", type(None): "null"}
    return frozenset({names[type(value)]})


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
