"""Grammar of the JSON texts that satisfy a schema, in llguidance's variant of Lark.

White space is allowed after `{`, `[`, `,` and `:` and before `}` and `]`: a blank, or a line break with an indent.
Properties are in the order of the schema. Every text has one spelling, since there are no escapes by number, so that a
name cannot be repeated in another form.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from app.text.schemas.embedding import embedded_object
from app.text.schemas.enforcement import Enforcement, below
from app.text.schemas.errors import InvalidFormat
from app.text.schemas.expressions import JSON_SPACE, Rules, add_named, digest, literal, repeated
from app.text.schemas.nodes import ANY, NONE, Node, referenced_name
from app.text.schemas.normal_form import normal_form
from app.text.schemas.scalars import scalar_expression, scalar_text, string_terminal

MAX_BLOCK = 32  # members in rules that refer to each other; long chains exhaust the stack of llguidance
COMMA, COLON = "JSON_COMMA", "JSON_COLON"
_TERMINALS = {
    COMMA: f"/,{JSON_SPACE}?/",
    COLON: f"/:{JSON_SPACE}?/",
    "JSON_OPEN_OBJECT": rf"/\{{{JSON_SPACE}?/",
    "JSON_CLOSE_OBJECT": rf"/{JSON_SPACE}?\}}/",
    "JSON_EMPTY_OBJECT": rf"/\{{{JSON_SPACE}?\}}/",
    "JSON_OPEN_ARRAY": rf"/\[{JSON_SPACE}?/",
    "JSON_CLOSE_ARRAY": rf"/{JSON_SPACE}?\]/",
    "JSON_EMPTY_ARRAY": rf"/\[{JSON_SPACE}?\]/",
}


def json_value(rules: Rules, schema: dict[str, Any] | bool, *, is_strict: bool, lenient: Collection[str] = ()) -> str:
    """Return an expression for JSON by a schema, and add the rules that it needs.

    is_strict, lenient: as for `normal_form`. Raises `InvalidFormat`.
    """
    node = normal_form(schema, is_strict=is_strict, lenient=lenient)
    return _Writer(rules, node, Enforcement(is_strict=is_strict, lenient=lenient)).value(node, "")


class _Writer:
    """Translation of one schema in normal form."""

    def __init__(self, rules: Rules, root: Node, enforcement: Enforcement) -> None:
        self._rules = rules
        self._enforcement = enforcement
        self._definitions: dict[str, Node] = root.get("$defs", {})
        self._references: dict[str, str] = {}  # names of rules
        # Names of rules depend on the definitions, since a grammar may have several schemas.
        self._digest = digest(json.dumps(self._definitions)) if self._definitions else ""
        for name, body in _TERMINALS.items():
            rules.add(name, body)

    def value(self, node: Node | bool, place: str) -> str:
        """Return an expression for the values of a node. Raises `InvalidFormat`."""
        self._enforcement.step()
        if isinstance(node, bool):
            node = ANY if node else NONE
        if "not" in node:
            raise InvalidFormat(f"no value satisfies the schema {f'at {place}' if place else ''}".rstrip())
        if (name := referenced_name(node)) is not None:
            return self._reference(name)
        if "anyOf" in node:
            inner = below(place, "anyOf")
            return _any_of([self.value(each, below(inner, number)) for number, each in enumerate(node["anyOf"])])
        if "enum" in node and "type" not in node:
            return self._listed(node["enum"])
        match node.get("type"):
            case None:
                return self._any_value()
            case "array":
                return add_named(self._rules, "json_array", self._array(node, place))
            case "object":
                return add_named(self._rules, "json_object", self._object(node, place))
        return scalar_expression(node, self._rules, self._enforcement, place)

    def _reference(self, name: str) -> str:
        if name not in self._references:
            rule = self._references[name] = f"json_{digest(f'{self._digest} {name}')}"
            self._rules.add(rule, self.value(self._definitions[name], below("$defs", name)))
        return self._references[name]

    def _any_value(self) -> str:
        words = self._rules.add("JSON_WORD", '"true" | "false" | "null"')
        number = scalar_expression({"type": "number"}, self._rules, self._enforcement, "")
        string = string_terminal(self._rules)
        array = f"JSON_EMPTY_ARRAY | JSON_OPEN_ARRAY json_any ({COMMA} json_any)* JSON_CLOSE_ARRAY"
        member = f"{string} {COLON} json_any"
        members = f"JSON_EMPTY_OBJECT | JSON_OPEN_OBJECT {member} ({COMMA} {member})* JSON_CLOSE_OBJECT"
        return self._rules.add("json_any", f"{words} | {number} | {string} | {array} | {members}")

    def _listed(self, values: list[Any]) -> str:
        """Return an expression for one of some values."""
        scalars = [literal(text) for value in values if not isinstance(value, list | dict) for text in _texts(value)]
        others = [self._constant(value) for value in values if isinstance(value, list | dict)]
        if len(scalars) > 1:  # one terminal is found faster than one of many
            scalars = [add_named(self._rules, "ENUM", " | ".join(scalars))]
        return _any_of([*scalars, *others])

    def _constant(self, value: Any) -> str:
        """Return an expression for a value."""
        if isinstance(value, list) and value:
            return f"JSON_OPEN_ARRAY {f' {COMMA} '.join(map(self._constant, value))} JSON_CLOSE_ARRAY"
        if isinstance(value, dict) and value:
            members = [f"{literal(scalar_text(key))} {COLON} {self._constant(each)}" for key, each in value.items()]
            return f"JSON_OPEN_OBJECT {f' {COMMA} '.join(members)} JSON_CLOSE_OBJECT"
        if isinstance(value, list | dict):
            return "JSON_EMPTY_ARRAY" if isinstance(value, list) else "JSON_EMPTY_OBJECT"
        return literal(scalar_text(value))

    def _array(self, node: Node, place: str) -> str:
        minimum, maximum = node.get("minItems", 0), node.get("maxItems")
        if maximum == 0:
            return "JSON_EMPTY_ARRAY"
        if node.get("uniqueItems"):
            return self._unique(node["items"]["enum"], minimum, node["maxItems"])
        inner = below(place, "prefixItems")
        prefix = [self.value(each, below(inner, number)) for number, each in enumerate(node.get("prefixItems", []))]
        items = node.get("items", ANY)
        rest = ""
        if items is not False and (maximum is None or maximum > len(prefix)):
            rest = self.value(items, below(place, "items"))
        if not prefix:
            prefix, minimum_rest = [rest], max(minimum - 1, 0)
        else:
            minimum_rest = max(minimum - len(prefix), 0)
        tail = ""
        if rest:
            tail = repeated(f"{COMMA} {rest}", minimum_rest, None if maximum is None else maximum - len(prefix))
        for number in range(len(prefix) - 1, 0, -1):
            tail = f"{COMMA} {prefix[number]} {tail}"
            if number >= minimum:
                tail = f"({tail})?"
        array = f"JSON_OPEN_ARRAY {prefix[0]} {tail} JSON_CLOSE_ARRAY"
        return array if minimum else f"JSON_EMPTY_ARRAY | {array}"

    def _unique(self, values: list[Any], minimum: int, maximum: int) -> str:
        """Return an expression for arrays in which no value is repeated. A rule's parameter has a bit for each value.

        Source: llguidance's parametric grammars.
        """
        texts = [literal(scalar_text(value)) for value in values]
        more = [
            f"{COMMA} {text} RULE::set_bit({bit}) %if and(bit_clear({bit}), bit_count_lt(_, {maximum}))"
            for bit, text in enumerate(texts)
        ]
        body = " | ".join([f'"" %if bit_count_ge(_, {minimum})', *more])
        rule = f"json_unique_{digest(body)}"
        self._rules.add(f"{rule}::_", body.replace("RULE", rule))
        first = _any_of([f"{text} {rule}::{1 << bit}" for bit, text in enumerate(texts)])
        array = f"JSON_OPEN_ARRAY {first} JSON_CLOSE_ARRAY"
        return array if minimum else f"JSON_EMPTY_ARRAY | {array}"

    def _object(self, node: Node, place: str) -> str:
        properties, required = node.get("properties", {}), set(node.get("required", ()))
        patterns, others = node.get("patternProperties", {}), node.get("additionalProperties", ANY)
        if patterns and (properties or others is not False or len(patterns) > 1):
            return embedded_object(node, self._definitions, self._enforcement, place)
        inner = below(place, "properties")
        items = [
            (f"{literal(scalar_text(name))} {COLON} {self.value(each, below(inner, name))}", name in required)
            for name, each in properties.items()
            if each is not False
        ]
        if patterns or others is not False:
            entry = self._entry(node, place)
            most = node["maxProperties"] - len(required) if "maxProperties" in node else None
            if most != 0:
                items.append((f"{entry} {repeated(f'{COMMA} {entry}', 0, most and most - 1)}", False))
        if not items:
            return "JSON_EMPTY_OBJECT"
        members = f"JSON_OPEN_OBJECT {self._members(items)} JSON_CLOSE_OBJECT"
        return members if required or node.get("minProperties") else f"JSON_EMPTY_OBJECT | {members}"

    def _entry(self, node: Node, place: str) -> str:
        """Return an expression for a member whose name is not listed."""
        if patterns := node.get("patternProperties"):
            [(pattern, each)] = patterns.items()
            name = self.value({"type": "string", "pattern": pattern}, below(place, "patternProperties"))
            return f"{name} {COLON} {self.value(each, below(place, 'patternProperties', pattern))}"
        if (names := node.get("propertyNames")) is not None:
            name = self.value(names, below(place, "propertyNames"))
        else:
            name = string_terminal(self._rules)
            if taken := node.get("properties"):
                listed = " | ".join(literal(scalar_text(each)) for each in taken)
                name = add_named(self._rules, "OTHER_NAME", f"{name} & ~({listed})")
        others = self.value(node.get("additionalProperties", ANY), below(place, "additionalProperties"))
        return f"{name} {COLON} {others}"

    def _members(self, items: list[tuple[str, bool]]) -> str:
        """Return an expression for members in order, of which at least one is present.

        items: expression, and whether the member is required.
        """
        beginnings: list[str] = []  # the list from each member on that may be its first
        following = later = ""  # members after the current one: in its block, and in later blocks
        for number, (item, is_required) in enumerate(reversed(items), 1):
            if is_required:
                beginnings = []
            beginnings.append(f"{item} {following} {later}")
            body = f"{COMMA} {item}" if is_required else f"({COMMA} {item})?"
            following = add_named(self._rules, "json_members", f"{body} {following}")
            if number % MAX_BLOCK == 0:
                later, following = add_named(self._rules, "json_members", f"{following} {later}"), ""
        return _any_of(beginnings[::-1])


def _texts(value: Any) -> list[str]:
    """Return the JSON texts of a scalar: two for 1.0, which is the integer 1, too."""
    text = scalar_text(value)
    return [text, text.removesuffix(".0")] if isinstance(value, float) and text.endswith(".0") else [text]


def _any_of(expressions: list[str]) -> str:
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"
