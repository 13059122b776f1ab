"""Types of arguments in formats that write all values as text: the schema decides which JSON value a text is."""

from __future__ import annotations

import ast
import json
import math
from typing import Any

STRING = frozenset({"string"})
ANY = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
MAX_NESTING = 64  # nested references and alternatives in a schema
MAX_LITERAL = 1 << 12  # characters of a value in Python's syntax
_LITERAL_STARTS = ("[", "{", "(", "True", "False", "None")  # numbers are written as in JSON


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
    """Return the JSON text of a value that was written as `text`: itself if it is JSON of one of `types`, JSON if it is
    such a value in Python's syntax, which templates write, otherwise a string.
    """
    if types != STRING:
        for value in (text.strip(), _from_python(text.strip())):
            if types & _types_of(value) - STRING:
                return value
    return json.dumps(text, ensure_ascii=False)


def _from_python(text: str) -> str:
    """Return a literal of Python as JSON; empty if it is none."""
    if len(text) > MAX_LITERAL or not text.startswith(_LITERAL_STARTS):
        return ""
    try:
        value = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        # Two escapes for one character are joined; half of a character cannot be sent.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ""


def listed_values(schema: Any, root: dict[str, Any]) -> list[Any] | None:
    """Return the values that a schema allows if it lists them: by an enumeration, a constant, null, a boolean, or
    alternatives of these. None for other schemas. root: the schema to which its references refer.
    """
    return _listed(schema, root, set(), MAX_NESTING)


def _listed(schema: Any, root: dict[str, Any], seen: set[str], depth: int) -> list[Any] | None:
    """Return the values of `listed_values`. seen: references that were followed before, which add nothing."""
    if not isinstance(schema, dict) or depth == 0:
        return None
    if isinstance(values := schema.get("enum"), list) and values:
        return values
    if "const" in schema:
        return [schema["const"]]
    if isinstance(reference := schema.get("$ref"), str):
        if reference in seen:
            return []
        seen.add(reference)
        return _listed(referenced(reference, root), root, seen, depth - 1)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        found = [_listed(each, root, seen, depth - 1) for each in alternatives]
        return None if None in found else [value for each in found if each is not None for value in each]
    by_type: dict[object, list[Any]] = {"null": [None], "boolean": [True, False]}
    given = schema.get("type")
    return by_type.get(given) if isinstance(given, str) else None


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
    if isinstance(value, float) and not math.isfinite(value):
        return frozenset()
    if isinstance(value, int | float):
        return frozenset({"number", "integer"} if value == value // 1 else {"number"})
    names = {str: "string", dict: "object", list: "array", type(None): "null"}
    return frozenset({names[type(value)]})


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
