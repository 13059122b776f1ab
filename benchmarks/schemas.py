"""Random JSON Schemas of the keywords that grammars enforce. Every schema has values that satisfy it."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("name", "id", "size", "tags", "child", "price", "is_open", "x", "city", "größe", "first name", "a-b")
WORDS = ("red", "green", "blue", "", 'quoted "word"', "ünïcode", "line\nbreak", "1")
PATTERNS = ("^[a-z]+$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no)$", r"^\d{4}-\d{2}$", "[0-9]", "^.{3,10}$")
FORMATS = ("date", "time", "date-time", "email", "ipv4", "uuid", "uri")
MAX_DEPTH = 3


def generated_schema(rng: random.Random) -> dict[str, Any]:
    """Return a schema, in most cases of an object, with definitions that it refers to."""
    definitions = {f"d{i}": _value(rng, 1) for i in range(rng.randint(0, 2))}
    schema = _object(rng, 0, list(definitions)) if rng.random() < 0.8 else _value(rng, 0)
    if definitions:
        schema = {**schema, "$defs": definitions}
    if rng.random() < 0.3:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Generated", **schema}
    return schema


def _value(rng: random.Random, depth: int, definitions: list[str] | None = None) -> dict[str, Any]:
    if definitions and rng.random() < 0.15:
        return {"$ref": f"#/$defs/{rng.choice(definitions)}"}
    makers = [_string, _integer, _number, _enum, _const, _simple]
    if depth < MAX_DEPTH:
        makers += [_object, _array, _any_of, _tuple]
    schema = rng.choice(makers)(rng, depth)
    return {**schema, "description": "A value."} if rng.random() < 0.1 else schema


def _object(rng: random.Random, depth: int, definitions: list[str] | None = None) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 5))
    properties = {name: _value(rng, depth + 1, definitions) for name in names}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if names and rng.random() < 0.8:
        schema["required"] = rng.sample(names, rng.randint(1, len(names)))
    if rng.random() < 0.7:
        schema["additionalProperties"] = False
    elif rng.random() < 0.3:
        schema["additionalProperties"] = _simple(rng, depth)
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": _value(rng, depth + 1)}
    low = rng.randint(0, 3)
    if rng.random() < 0.6:
        schema["minItems"] = low
    if rng.random() < 0.7:
        schema["maxItems"] = low + rng.randint(0, 3)
    return schema


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    items = [_value(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth + 1) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    match rng.randint(0, 4):
        case 0:
            schema["pattern"] = rng.choice(PATTERNS)
        case 1:
            schema["format"] = rng.choice(FORMATS)
        case 2:
            schema["minLength"] = low = rng.randint(0, 10)
            schema["maxLength"] = low + rng.randint(0, 20)
        case 3:
            schema["maxLength"] = rng.randint(1, 30)
    return schema


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    low = rng.randint(-1000, 1000)
    if rng.random() < 0.6:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.6:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randint(2, 500)
    if len(schema) == 1 and rng.random() < 0.3:
        schema["multipleOf"] = rng.choice([2, 5, 10])
    return schema


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = round(rng.uniform(-100, 100), rng.randint(0, 2))
    return {"type": "number", "minimum": low, "maximum": low + rng.randint(1, 100)}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    values: list[Any] = [*rng.sample(WORDS, rng.randint(1, 4)), rng.randint(0, 9), None, True]
    return {"enum": rng.sample(values, rng.randint(1, len(values)))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice([*WORDS, 0, 1.5, False, None, ["a", 1], {"k": [None]}])}


def _simple(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null"]
    return {"type": rng.choice(kinds) if rng.random() < 0.7 else rng.sample(kinds, 2)}


def _required(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
ADDRESS = _required(street=STRING, city=STRING)
# Questions, and the tool or the schema of the answer, whose objects are open and whose integers have no bounds.
ENDING: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "forced call": [
        ("What is the weather in Paris?", {"name": "get_weather", "parameters": _required(city=STRING)}),
        ("Add 17 and 25.", {"name": "add", "parameters": _required(x=INTEGER, y=INTEGER)}),
        ("Set a timer for ten minutes.", {"name": "set_timer", "parameters": _required(minutes=INTEGER, label=STRING)}),
        ("Who wrote Hamlet?", {"name": "final_result", "parameters": _required(author=STRING, year=INTEGER)}),
        ("Book a table for four at eight.", {"name": "book", "parameters": _required(people=INTEGER, time=STRING)}),
    ],
    "object with integers": [
        ("Describe Ada Lovelace.", _required(name=STRING, age=INTEGER)),
        ("How many legs has a spider?", _required(legs=INTEGER)),
        ("Where is Berlin?", _required(latitude=NUMBER, longitude=NUMBER)),
        ("Give the score of a game.", _required(home=INTEGER, away=INTEGER, minute=INTEGER)),
        ("What does a car cost?", _required(model=STRING, price=NUMBER, year=INTEGER)),
    ],
    "open schema": [
        ("Describe a person who lives in Rome.", _required(name=STRING, address=ADDRESS)),
        ("Describe a company.", _required(name=STRING, office=ADDRESS, employees=INTEGER)),
        ("Describe a book.", _required(title=STRING, author=_required(name=STRING))),
        ("Describe an order of two items.", _required(item=STRING, customer=_required(name=STRING, address=ADDRESS))),
        ("Describe the weather.", _required(city=STRING, today=_required(summary=STRING, degrees=NUMBER))),
    ],
}
