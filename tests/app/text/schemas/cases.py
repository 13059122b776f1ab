"""Random schemas, each with a value that satisfies it, as hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("name", "id", "size", "größe", "first name", 'a"b', "a\\b", "kind", "x")
PATTERNS = {
    "^[a-z]+$": ["abc", "x"],
    "^[A-Z]{2}-[0-9]{3}$": ["AB-123"],
    "[0-9]": ["a1b", "7"],
    "^a": ["a", "ab c"],
    r"^\d{4}-\d{2}$": ["2024-05"],
    "^.{3,10}$": ['"quoted"', "äöü"],
}
FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "date-time": ["2024-02-29T12:00:00Z", "2023-01-01T00:00:00.123+01:00"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::1", "2001:db8::8a2e:370:7334"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "email": ["a.b@example.org"],
    "unknown": ["any"],
}
VALUES: tuple[Any, ...] = (
    "red",
    "",
    'q"\\',
    "\x01\n",
    0,
    1,
    -7,
    2.5,
    0.1,
    1e22,
    12345678901234567891,
    None,
    True,
    False,
)
MAX_DEPTH = 3

Case = tuple[dict[str, Any], Any]  # a schema and a value


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return a schema with definitions, some of them recursive, and a value."""
    definitions = {f"d{number}": draw(parts(MAX_DEPTH - 1)) for number in range(draw(st.integers(0, 2)))}
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}}}
    definitions["node"] = node, {"next": {"next": {"value": 1}}, "value": 2}
    schema, value = draw(parts(0, tuple(definitions.items())))
    return {**schema, "$defs": {name: each for name, (each, _) in definitions.items()}}, value


@st.composite
def parts(draw: st.DrawFn, depth: int, definitions: tuple[tuple[str, Case], ...] = ()) -> Case:
    """Return a schema without definitions of its own, and a value."""
    makers = [strings, integers, numbers, listed, simple, types]
    if depth < MAX_DEPTH:
        makers += [objects, objects, arrays, tuples, alternatives, exclusive, intersections, unique]
    if definitions and draw(st.integers(0, 4)) == 0:
        name, (_, value) = draw(st.sampled_from(definitions))
        extra = draw(st.sampled_from([{}, {"description": "\x01"}, {"default": None}]))
        return {"$ref": f"#/$defs/{name}", **extra}, value
    schema, value = draw(draw(st.sampled_from(makers))(depth + 1, definitions))
    return ({**schema, "title": "A value."} if draw(st.booleans()) else schema), value


@st.composite
def strings(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    kind = draw(st.sampled_from(["pattern", "format", "length"]))
    if kind == "length":
        value = draw(st.text(st.characters(exclude_categories=["C"]), max_size=6))
        low, high = draw(st.integers(0, len(value))), len(value) + draw(st.integers(0, 3))
        return {"type": "string", "minLength": low, "maxLength": high}, value
    table = PATTERNS if kind == "pattern" else FORMATS
    name = draw(st.sampled_from(sorted(table)))
    return {"type": "string", kind: name}, draw(st.sampled_from(table[name]))


@st.composite
def integers(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    value = draw(st.integers(-(10**6), 10**6) | st.integers(-(10**17), 10**17))
    schema: dict[str, Any] = {"type": "integer"}
    if draw(st.booleans()):
        schema["minimum"] = value - draw(st.integers(0, 300))
    if draw(st.booleans()):
        schema["exclusiveMaximum"] = value + draw(st.integers(1, 300))
    return schema, value


@st.composite
def numbers(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    value = draw(st.integers(-(10**6), 10**6)) / 10 ** draw(st.integers(0, 4))
    schema: dict[str, Any] = {"type": "number"}
    if draw(st.booleans()):
        name = draw(st.sampled_from(["minimum", "exclusiveMinimum"]))
        schema[name] = round(value - draw(st.integers(1, 300)) / 100, 6)
    if draw(st.booleans()):
        name = draw(st.sampled_from(["maximum", "exclusiveMaximum"]))
        schema[name] = round(value + draw(st.integers(1, 300)) / 100, 6)
    return schema, value


@st.composite
def listed(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4))
    structures: list[Any] = [[1, "a", []], {"k": [None], "é": {}}]
    values += draw(st.lists(st.sampled_from(structures), max_size=1))
    value = draw(st.sampled_from(values))
    return ({"const": value} if draw(st.booleans()) else {"enum": values}), value


@st.composite
def simple(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    schemas = [({"type": "boolean"}, True), ({"type": "null"}, None), ({"type": "string"}, "a\n\t"), ({}, {"a": [1.5]}),
               ({"type": "object"}, {"a": {}}), ({"type": "array"}, [1, []]), ({"type": "number"}, -1.5e-7),
               ({"type": "integer"}, -12), ({"multipleOf": 5, "type": "integer"}, 35)]  # fmt: skip
    found: Case = draw(st.sampled_from(schemas))
    return found


@st.composite
def types(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    schema = {"type": draw(st.permutations(["string", "integer", "null"])), "minLength": 1, "minimum": 2}
    return schema, draw(st.sampled_from(["a", 2, 10, None]))


@st.composite
def objects(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    members = {name: draw(parts(depth, definitions)) for name in names}
    required = [name for name in names if draw(st.booleans())]
    value = {name: each for name, (_, each) in members.items() if name in required or draw(st.booleans())}
    schema: dict[str, Any] = {"type": "object", "properties": {name: each for name, (each, _) in members.items()}}
    if required:
        schema["required"] = draw(st.permutations(required))
    match draw(st.integers(0, 3)):
        case 0:
            schema["additionalProperties"] = False
        case 1:
            others, each = draw(parts(depth, definitions))
            schema["additionalProperties"] = others
            value["other"] = each
    return schema, value


@st.composite
def arrays(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    schema, value = draw(parts(depth, definitions))
    count = draw(st.integers(0, 3))
    bounds = {"minItems": draw(st.integers(0, count)), "maxItems": count + draw(st.integers(0, 2))}
    chosen = {key: bounds[key] for key in bounds if draw(st.booleans())}
    return {"type": "array", "items": schema, **chosen}, [value] * count


@st.composite
def tuples(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    items = draw(st.lists(parts(depth, definitions), min_size=1, max_size=3))
    minimum = draw(st.integers(0, len(items)))
    schema: dict[str, Any] = {"type": "array", "prefixItems": [each for each, _ in items], "minItems": minimum}
    if draw(st.booleans()):
        schema["items"] = draw(st.sampled_from([False, {"type": "null"}]))
    return schema, [value for _, value in items][: draw(st.integers(minimum, len(items)))]


@st.composite
def alternatives(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    found = draw(st.lists(parts(depth, definitions), min_size=1, max_size=3))
    return {"anyOf": [each for each, _ in found]}, draw(st.sampled_from(found))[1]


@st.composite
def exclusive(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    """Return alternatives that are told apart by a constant, or by their types."""
    if draw(st.booleans()):
        kinds: list[Case] = [({"type": "string"}, "a"), ({"type": "integer"}, 1), ({"type": "array"}, []),
                             ({"type": ["null", "boolean"]}, None)]  # fmt: skip
        found = draw(st.permutations(kinds))[: draw(st.integers(1, 4))]
        return {"oneOf": [each for each, _ in found]}, draw(st.sampled_from(found))[1]
    choices = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        schema, value = draw(parts(depth, definitions))
        properties = {"tag": {"const": name}, "value": schema}
        choices.append(
            ({"type": "object", "properties": properties, "required": ["tag"]}, {"tag": name, "value": value})
        )
    return {"oneOf": [each for each, _ in choices]}, draw(st.sampled_from(choices))[1]


@st.composite
def intersections(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    """Return an object whose properties are in several schemas, or a range of which each schema has one bound."""
    if draw(st.booleans()):
        value = draw(st.integers(-50, 50))
        low, high = {"minimum": value - 2}, {"type": "integer", "maximum": value + 2}
        return {"allOf": [low, high], "type": "number"}, value
    first, second = draw(parts(depth, definitions)), draw(parts(depth, definitions))
    base = {"type": "object", "properties": {"first": first[0]}, "required": ["first"]}
    more: dict[str, Any] = {"properties": {"second": second[0], "third": {"type": "null"}}}
    value = {"first": first[1], "second": second[1]}
    return ({"allOf": [base, more]} if draw(st.booleans()) else {"allOf": [base], **more}), value


@st.composite
def unique(draw: st.DrawFn, depth: int, definitions: Any) -> Case:
    values = draw(st.lists(st.sampled_from(["a", "b", 1, 2, None]), min_size=1, unique=True))
    return {"type": "array", "items": {"enum": values}, "uniqueItems": True}, draw(st.permutations(values))
