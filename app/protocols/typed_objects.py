"""Objects that have a type, such as content parts, items and tools: tags of unions, and refusals by type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def type_of(value: Any) -> Any:
    """Return the type of an object of the protocol, or None. A message need not have one."""
    if not isinstance(value, dict):
        return None
    return value.get("type") or ("message" if "role" in value else "item_reference" if "id" in value else None)


def tag_of(value: Any) -> str:
    """Return the tag of the schema for an object. Its brackets keep it out of the paths in error messages."""
    return f"[{type_of(value)}]"


def supported_types(
    *types: str, advice: str, allows_text: bool = False, accepts: Callable[[Any], bool] = lambda _: False
) -> BeforeValidator:
    """Return a validator that refuses values other than objects of these types, with the type that was given.

    allows_text: leave strings to the next validator. accepts: whether an object of another type is accepted, which the
    error does not list.
    """

    def check(value: Any) -> Any:
        if allows_text and isinstance(value, str):
            return value
        kind = type_of(value)
        if not isinstance(kind, str):
            raise PydanticCustomError("object_type", "Input should be an object with a type")
        if kind not in types and not accepts(value):
            context = {"kind": repr(kind[:80]), "types": ", ".join(types), "advice": advice}
            raise PydanticCustomError(
                "unsupported", "the type {kind} is not supported, only {types}; {advice}", context
            )
        return value

    return BeforeValidator(check)
