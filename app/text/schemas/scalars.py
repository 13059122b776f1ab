"""Expressions for JSON texts that are neither objects nor arrays."""

from __future__ import annotations

import json
import re
from typing import Any

from app.text.schemas.enforcement import Enforcement
from app.text.schemas.expressions import Rules, add_named, embedded_json
from app.text.schemas.formats import FORMATS
from app.text.schemas.nodes import Node, exact
from app.text.schemas.numbers import (
    MAX_NUMBER_DIGITS,
    OutOfRange,
    decimals_of,
    integer_bounds,
    integer_expression,
    number_expression,
)  # fmt: skip

CHARACTER = r"""([^"\\\x00-\x1f\x7f]|\\["\\nrbtf])"""
MAX_MULTIPLE = 10_000  # apart from factors of 10; a grammar needs a state for each remainder
_SURROGATE = re.compile("[\ud800-\udfff]")


def scalar_text(value: Any) -> str:
    """Return the JSON text of a value. Numbers have all of their digits, and characters are escaped if they must be."""
    return json.dumps(value, ensure_ascii=isinstance(value, str) and _SURROGATE.search(value) is not None)


def scalar_expression(node: Node, rules: Rules, enforcement: Enforcement, place: str) -> str:
    """Return an expression for the values of a node of a type other than array and object."""
    match node["type"]:
        case "null":
            return '"null"'
        case "boolean":
            return rules.add("JSON_BOOLEAN", '"true" | "false"')
        case "string":
            return _string(node, rules)
    try:
        return _number(node, rules)
    except OutOfRange as error:
        enforcement.drop(error.keyword, place, "has too many digits")
        return _number({key: value for key, value in node.items() if key != error.keyword}, rules)


def string_terminal(rules: Rules) -> str:
    """Return the name of the terminal of any string."""
    return rules.add("JSON_STRING", f'/"{CHARACTER}*"/')


def _string(node: Node, rules: Rules) -> str:
    minimum, maximum = node.get("minLength", 0), node.get("maxLength", "")
    given = node.get("format")
    if "pattern" in node:
        schema = {key: value for key, value in node.items() if key != "format"}
        if given is not None:
            schema["allOf"] = [*schema.get("allOf", []), {"pattern": f"^(?:{FORMATS[given]})$"}]
        return embedded_json(schema)
    if given is not None:
        content = f"/{_escaped(FORMATS[given])}/"
        if minimum > 1 or maximum != "":
            content = f"({content} & /.{{{minimum},{maximum}}}/)"
        return add_named(rules, "FORMAT", rf'"\"" {content} "\""')
    if minimum or maximum != "":
        return add_named(rules, "TEXT", f'/"{CHARACTER}{{{minimum},{maximum}}}"/')
    return string_terminal(rules)


def _number(node: Node, rules: Rules) -> str:
    if node["type"] == "integer":
        if "multipleOf" not in node:
            return add_named(rules, "INTEGER", f"/{integer_expression(node)}/")
        low, high = integer_bounds(node)
        if _without_tens(node["multipleOf"]) > MAX_MULTIPLE:
            raise OutOfRange("multipleOf")
        # llguidance reads bounds as doubles.
        largest = 10**MAX_NUMBER_DIGITS
        for keyword, bound in (("minimum", low - largest), ("maximum", -largest - high)):
            if bound >= 0:
                raise OutOfRange(keyword)
        return embedded_json({**node, "minimum": max(low, -largest), "maximum": min(high, largest)})
    if "multipleOf" not in node or decimals_of(node) is not None:
        return add_named(rules, "NUMBER", number_expression(node))
    if _without_tens(exact(node["multipleOf"]).numerator) > MAX_MULTIPLE:
        raise OutOfRange("multipleOf")
    largest = 10**MAX_NUMBER_DIGITS
    bounds = {}
    if not node.keys() & {"minimum", "exclusiveMinimum"}:
        bounds["minimum"] = -largest
    if not node.keys() & {"maximum", "exclusiveMaximum"}:
        bounds["maximum"] = largest
    return embedded_json({**node, **bounds})


def _without_tens(number: int) -> int:
    """Return a number without its factors of 2 and 5."""
    for factor in (2, 5):
        while number % factor == 0:
            number //= factor
    return number


def _escaped(pattern: str) -> str:
    """Return a pattern for use between slashes."""
    return pattern.replace("/", "\\/")
