"""Types of arguments in formats that write all values as text: the schema decides which JSON value a text is."""

from __future__ import annotations

import json
from typing import Any

STRING = frozenset({"string"})
ANY = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
MAX_REFERENCES = 16  # nested references and alternatives in a schema
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
    return _types(schema, parameters, MAX_REFERENCES)


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


def _types(schema: Any, root: dict[str, Any], depth: int) -> frozenset[str]:
    """Return the types that `schema` allows; `ANY` if it does not restrict them or is nested too deeply."""
    if not isinstance(schema, dict) or depth == 0:
        return ANY
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset({given}) | ({"null"} if schema.get("nullable") is True else set())
    if isinstance(given, list):
        return frozenset(item for item in given if isinstance(item, str))
    if isinstance(reference := schema.get("$ref"), str):
        return _types(referenced(reference, root), root, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schemas := schema.get(key), list) and schemas:
            found = [_types(each, root, depth - 1) for each in schemas]
            return frozenset.intersection(*found) if key == "allOf" else frozenset.union(*found)
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
