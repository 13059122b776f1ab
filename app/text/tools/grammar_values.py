"""Grammars of arguments that are not written as one JSON object: between tags, or in Python's syntax.

Of the schema, these enforce names, order, required arguments, types, enumerations and the members of JSON values. For
text between tags, and for values in Python's syntax, they do not enforce lengths, patterns and ranges.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from app.text.tools.argument_types import MAX_NESTING, argument_types, referenced
from app.text.tools.definitions import Tool
from app.text.tools.grammar_rules import GrammarRules, any_of, json_value, literal, parameters_of

PYTHON_TERMINALS = {
    "string": r"""/"([^"\\\n]|\\[^\n])*"|'([^'\\\n]|\\[^\n])*'/""",
    "number": r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "integer": "/-?(0|[1-9][0-9]*)/",
    "boolean": '("True" | "False")',
    "null": '"None"',
}


def qwen3_coder_arguments(rules: GrammarRules, tool: Tool) -> str:
    """Return an expression for the parameters of a call of Qwen3-Coder."""
    end = "\n</parameter>\n"
    if _is_free(rules, tool):
        return f'("<parameter=" /[^<>\\n]{{1,64}}/ ">\\n" {rules.until("value", end)})*'
    members = _members(parameters_of(tool))
    begins = {name: literal(f"<parameter={name}>\n") for name in members}
    return " ".join(_tagged_argument(rules, tool, name, begins[name], end, members[name]) for name in members)


def glm_arguments(rules: GrammarRules, tool: Tool) -> str:
    """Return an expression for the arguments of a call of GLM, with or without line breaks between the tags."""
    key, middle, value = map(rules.marker, ("<arg_key>", "</arg_key>", "<arg_value>"))
    if _is_free(rules, tool):
        return f'({key} /[^<>\\n]{{1,64}}/ {middle} "\\n"? {value} {rules.until("value", "</arg_value>")} "\\n"?)*'
    members = _members(parameters_of(tool))
    begins = {name: f'{key} {literal(name)} {middle} "\\n"? {value}' for name in members}
    arguments = (
        _tagged_argument(rules, tool, name, begins[name], "</arg_value>", members[name], '"\\n"?') for name in members
    )
    return " ".join(arguments)


def python_arguments(rules: GrammarRules, tool: Tool) -> str:
    """Return an expression for the arguments of a call in Python's syntax."""
    if _is_free(rules, tool):
        item = rules.add("argument", f'/[a-zA-Z_][a-zA-Z0-9_]{{0,63}}/ "=" {_any_python(rules)}')
        return f'({item} (", " {item})*)?'
    schema = parameters_of(tool)
    return _python_members(rules, schema, schema, lambda name: literal(f"{name}="))


def _is_free(rules: GrammarRules, tool: Tool) -> bool:
    """Return whether a tool takes any arguments."""
    if not rules.is_constrained(tool):
        return True
    schema = parameters_of(tool)
    return not _members(schema) and schema.get("additionalProperties") is not False


def _members(schema: dict[str, Any]) -> dict[str, bool]:
    """Return the names of an object's members, and whether each is required."""
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    return {name: isinstance(required, list) and name in required for name in names}


def _tagged_argument(
    rules: GrammarRules, tool: Tool, name: str, begin: str, end: str, is_required: bool, after: str = ""
) -> str:
    """Return an expression for one argument between tags. end: the text after the value; after: an expression."""
    root = parameters_of(tool)
    schema = root["properties"][name]
    values = _listed_values(schema, root)
    if values is not None:
        texts = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
        value = f"{any_of(map(literal, texts))} {rules.marker(end)}"
    elif "string" in argument_types(root, name):
        value = rules.until("value", end)
    else:
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        value = f"{json_value(shared | schema, is_strict=tool.strict)} {rules.marker(end)}"
    return f"({begin} {value} {after}){'' if is_required else '?'}"


def _listed_values(schema: Any, root: dict[str, Any]) -> list[Any] | None:
    """Return the values that an enumeration or constant allows; None for other schemas."""
    for _ in range(MAX_NESTING):
        if not isinstance(schema, dict):
            return None
        if isinstance(values := schema.get("enum"), list) and values:
            return values
        if "const" in schema:
            return [schema["const"]]
        if not isinstance(reference := schema.get("$ref"), str):
            return None
        schema = referenced(reference, root)
    return None


def _python_members(
    rules: GrammarRules, schema: dict[str, Any], root: dict[str, Any], begin: Callable[[str], str]
) -> str:
    """Return an expression for the members of an object. begin: returns the expression before a member's value."""
    items = [
        (f"{begin(name)} {_python_value(rules, schema['properties'][name], root)}", is_required)
        for name, is_required in _members(schema).items()
    ]
    return rules.add_separated(items, '", "')


def _python_value(rules: GrammarRules, schema: Any, root: dict[str, Any]) -> str:
    """Return an expression for a value in Python's syntax."""
    if not isinstance(schema, dict):
        return _any_python(rules)
    values = _listed_values(schema, root)
    if values is not None:
        return any_of(text for value in values for text in _python_literals(value))
    if isinstance(reference := schema.get("$ref"), str):
        target = referenced(reference, root)
        return rules.add_shared(root, reference, lambda: _python_value(rules, target, root))
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list) and alternatives:
        return any_of(_python_value(rules, each, root) for each in alternatives)
    given = schema.get("type")
    types = given if isinstance(given, list) and given else [given]
    return any_of(_python_type(rules, each, schema, root) for each in types)


def _python_type(rules: GrammarRules, given: Any, schema: dict[str, Any], root: dict[str, Any]) -> str:
    """Return an expression for values of one type of a schema."""
    if given in PYTHON_TERMINALS:
        return rules.add(f"python_{given}", PYTHON_TERMINALS[given])
    if given == "array":
        item = _python_value(rules, schema.get("items"), root)
        return f'"[" ({item} (", " {item})*)? "]"'
    if given == "object" and _members(schema):
        members = _python_members(rules, schema, root, lambda name: _python_key(literal(name)))
        return f'"{{" {members} "}}"'
    return _any_python(rules)


def _python_key(name: str) -> str:
    return any_of((literal(f"{name}: "), literal(f"'{name[1:-1]}': ")))


def _python_literals(value: Any) -> list[str]:
    """Return expressions for a constant, in both kinds of quotes."""
    if isinstance(value, str):
        return [literal(json.dumps(value, ensure_ascii=False)), literal(repr(value))]
    return [literal(repr(value))]


def _any_python(rules: GrammarRules) -> str:
    """Return an expression for any value in Python's syntax."""
    scalars = " | ".join(rules.add(f"python_{name}", body) for name, body in PYTHON_TERMINALS.items())
    array = '"[" (python_value (", " python_value)*)? "]"'
    entry = 'python_string ": " python_value'
    return rules.add("python_value", f'{scalars} | {array} | "{{" ({entry} (", " {entry})*)? "}}"')
