"""Arguments that are written one by one between tags, as Qwen3-Coder and GLM-4.5 do.

A value is plain text up to a tag. Strings are passed on as they arrive, escaped. Where the schema admits no string, a
value is JSON, which is passed on verbatim. Of a value that may be a string or something else, the whole text decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from app.text.marks import Marks
from app.text.schemas.enforcement import Enforcement, below
from app.text.schemas.nodes import Node
from app.text.schemas.scalars import scalar_text
from app.text.tools.argument_schema import is_open, members, resolved
from app.text.tools.argument_types import STRING, argument_types, escape, json_value, listed_values
from app.text.tools.grammar_rules import GrammarRules, any_of, literal
from app.text.tools.json_arguments import read_json
from app.text.tools.syntax import MAX_NAME, ArgumentSyntax, OpenCall
from app.text.tools.text_reader import Literals, Steps, TextReader

ANY_NAME = r"[^<>\n]"


@dataclass(frozen=True, slots=True)
class TaggedArguments(ArgumentSyntax):
    """Arguments of the form: `before`, the name, a text of `middles`, the value, `end`, and `gap` or nothing.

    In constrained calls the names are those of the schema, in its order, and the values are of its types. Otherwise any
    names and texts are possible.
    """

    before: str
    middles: tuple[str, ...]
    end: str
    gap: str = ""

    def expression(self, rules: GrammarRules, schema: Node | None, *, is_strict: bool) -> str:
        """Return an expression for the arguments. Raises `InvalidFormat`."""
        gap = f"{rules.text(self.gap)}?" if self.gap else ""
        if schema is None or is_open(schema):
            middle = any_of(map(rules.text, self.middles))
            return f"({rules.text(self.before)} /{ANY_NAME}{{1,64}}/ {middle} {rules.until('value', self.end)} {gap})*"
        enforcement, expressions = Enforcement(is_strict=is_strict), []
        for name, is_required in members(schema).items():
            begin = any_of(map(rules.marked, self._begins(name, rules.marks)))
            value = self._value(rules, schema, name, enforcement)
            expressions.append(f"({begin} {value} {gap}){'' if is_required else '?'}")
        return " ".join(expressions)

    def _begins(self, name: str, marks: Marks) -> list[str]:
        """Return the possible texts before the value of an argument, with marks."""
        return [f"{marks.encode(self.before)}{name}{marks.encode(middle)}" for middle in self.middles]

    def _value(self, rules: GrammarRules, schema: Node, name: str, enforcement: Enforcement) -> str:
        """Return an expression for the value of an argument, and its end. Raises `InvalidFormat`."""
        node = schema["properties"][name]
        listed = listed_texts(schema, name)
        if listed is not None:
            _check_listed(node, schema["$defs"], enforcement, below("properties", name))
            return f"{any_of(map(literal, listed))} {rules.text(self.end)}"
        if "string" in argument_types(schema, name):
            _check_text(node, schema["$defs"], enforcement, below("properties", name))
            return rules.until("value", self.end)
        value = rules.json_value(node | {"$defs": schema["$defs"]}, is_strict=True)
        return f"{value} {rules.text(self.end)}"

    def read(self, call: OpenCall) -> Steps[bool]:
        """Read the arguments and the end of the call. Return whether it is complete."""
        is_empty, encode = True, call.marks.encode
        is_any = call.schema is None or is_open(call.schema)
        names = [] if call.schema is None else list(members(call.schema))
        begins = {begin: name for name in names for begin in self._begins(name, call.marks)}
        free = [encode(self.before)] if is_any else []
        following = Literals([*begins, *free, call.end])
        gap = Literals([self.gap] if self.gap else [])
        while True:
            found = yield from call.reader.accept(following)
            if found == call.end:
                call.put("{}" if is_empty else "}")
                return True
            name = begins.get(found) or (yield from self._read_name(call)) if found else ""
            if not name:
                return False
            call.put(("{" if is_empty else ", ") + json.dumps(name, ensure_ascii=False) + ": ")
            is_empty = False
            if not (yield from self._read_value(call, name, is_any=is_any)):
                return False
            yield from call.reader.accept(gap)

    def _read_name(self, call: OpenCall) -> Steps[str]:
        """Read and return any name; empty if there is none."""
        name = yield from call.reader.read_while(_ANY_NAME, MAX_NAME)
        middles = Literals(map(call.marks.encode, self.middles))
        return name if (yield from call.reader.accept(middles)) else ""

    def _read_value(self, call: OpenCall, name: str, *, is_any: bool) -> Steps[bool]:
        """Read a value and its end, and pass it on as JSON. Return whether both are complete."""
        reader, end = call.reader, call.marks.encode(self.end)
        schema = call.tool.parameters if call.schema is None else call.schema
        types = argument_types(schema, name)
        if not is_any:
            listed = listed_texts(schema, name)
            if listed is not None:
                texts = {text + end: value for text, value in listed.items()}
                found = yield from reader.accept(Literals(texts))
                call.put(texts.get(found, ""))
                return bool(found)
            if "string" not in types:
                is_complete = yield from read_json(reader, call.put)
                return is_complete and bool((yield from reader.accept(Literals([end]))))
        if types == STRING:
            call.put('"')
            is_complete = yield from read_until(reader, end, lambda piece: call.put(escape(piece)))
            call.put('"' if is_complete else "")
            return is_complete
        pieces: list[str] = []
        is_complete = yield from read_until(reader, end, pieces.append)
        call.put(json_value("".join(pieces), types) if is_complete else "")
        return is_complete


_ANY_NAME = re.compile(f"{ANY_NAME}+")


def listed_texts(schema: Node, name: str) -> dict[str, str] | None:
    """Return the JSON of each text of an argument whose schema lists its values; None for other schemas."""
    values = listed_values(schema["properties"][name], schema)
    if values is None:
        return None
    written = [(scalar_text(value), value) for value in values]
    return {value if isinstance(value, str) else text: text for text, value in reversed(written)}


def _check_listed(node: Node, definitions: dict[str, Node], enforcement: Enforcement, place: str) -> None:
    """Check that nothing else restricts listed values. Raises `InvalidFormat`."""
    node = resolved(node, definitions)
    for number, each in enumerate(node.get("anyOf", ())):
        _check_listed(each, definitions, enforcement, below(place, "anyOf", number))
    for keyword in node:
        if keyword not in ("type", "anyOf", "enum", "$defs"):
            enforcement.drop(keyword, place)


def _check_text(node: Node, definitions: dict[str, Node], enforcement: Enforcement, place: str) -> None:
    """Check that any text is a value of a node: a string, or another scalar without bounds. Raises `InvalidFormat`.

    The text decides which it is, so that nothing can be enforced of one alternative alone.
    """
    node = resolved(node, definitions)
    for number, each in enumerate(node.get("anyOf", ())):
        _check_text(each, definitions, enforcement, below(place, "anyOf", number))
    if node.get("type") in ("object", "array"):
        enforcement.drop(f"type {node['type']}", place, "cannot be told from a string")
    for keyword in node:
        if keyword not in ("type", "anyOf", "$defs", "format"):
            enforcement.drop(keyword, place)


def read_until(reader: TextReader, end: str, put: Callable[[str], None]) -> Steps[bool]:
    """Read text up to the first `end`, and pass the text before it to `put`. Return whether the end is there.

    The beginning of an end, at the end of the answer, is not passed on.
    """
    plain, ends = re.compile(f"[^{re.escape(end[0])}]+"), Literals([end])
    while True:
        put(reader.take_match(plain))
        if (yield from reader.accept(ends)):
            return True
        ahead = yield from reader.peek()
        if not ahead:
            return False
        if reader.is_ended and reader.ends_within(end):
            reader.take(len(end))
            return False
        put(reader.take(1))
