"""Formats of answers as grammars."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.text.content_format import MAX_FORMAT_CHARACTERS, ContentFormat, InvalidFormat, escaped_pattern
from app.text.tools.formats import format_by_name
from engine.constraints.grammars import GrammarTokenizer
from engine.types import Vocabulary

TOKENIZER = GrammarTokenizer(Vocabulary((b"<eos>", *(bytes([byte]) for byte in range(256))), (0,), (0,)))
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Person",
    "description": "A person.",
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "pattern": "^[A-Z][a-z]+$"}},
}
FORMATS = {
    "schema": ContentFormat("json_schema", SCHEMA, "response_format"),
    "object": ContentFormat("json_schema", {"type": "object"}, "response_format"),
    "any JSON": ContentFormat("json_schema", True, "structured_outputs"),
    "regex": ContentFormat("regex", r"^[0-9]+/[0-9]+\n?$", "structured_outputs"),
    "choice": ContentFormat("choice", ["yes", 'n"o', "näh\n"], "structured_outputs"),
    "grammar": ContentFormat("grammar", 'start: "<" WORD ">"\nWORD: /[a-z]+/', "structured_outputs"),
}


HERMES = format_by_name("hermes")
assert HERMES is not None


def accepts(form: ContentFormat, text: str, *, is_reasoning: bool = False, may_reason: bool = False) -> bool:
    """Return whether `text` is a complete answer."""
    grammar = HERMES.answer(None, form, is_reasoning=is_reasoning, may_reason=may_reason).grammar()
    assert grammar is not None
    matcher = TOKENIZER.compile(grammar)
    return bool(matcher.consume_tokens([1 + byte for byte in text.encode()])) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("name", "text", "is_accepted"),
    [
        ("schema", '{"name": "Ada"}', True),
        ("schema", '{\n  "name": "Ada",\n  "age": 36\n}', True),
        ("schema", '{"name":"Ada","age":36}', True),
        ("schema", '{"name": "ada"}', False),
        ("schema", '{"name": "Ada", "age": -1}', False),
        ("schema", '{"name": "Ada", "x": 1}', False),
        ("schema", '{"age": 36}', False),
        ("schema", '{"name":' + " " * 60 + '"Ada"}', False),
        ("object", '{"a": [1, {"b": null}]}', True),
        ("object", "[1]", False),
        ("any JSON", "[1]", True),
        ("any JSON", "one", False),
        ("regex", "12/7", True),
        ("regex", "12/7\n", True),
        ("regex", "12-7", False),
        ("choice", 'n"o', True),
        ("choice", "näh\n", True),
        ("choice", "no", False),
        ("grammar", "<abc>", True),
        ("grammar", "<>", False),
    ],
)
def test_answers_have_their_format(name: str, text: str, is_accepted: bool):
    """With reasoning in front of it, the content has the same format."""
    form = FORMATS[name]
    assert accepts(form, text) is is_accepted
    assert accepts(form, f"Hm < 3.</think>\n\n{text}", is_reasoning=True) is is_accepted
    assert accepts(form, f"<think>Hm.</think>{text}", may_reason=True) is is_accepted
    assert accepts(form, text, may_reason=True) is is_accepted
    assert not accepts(form, text, is_reasoning=True)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("json_schema", False, "no value satisfies"),
        ("json_schema", {"properties": {"a": {"not": {"type": "null"}}}}, "not at properties.a cannot be enforced"),
        ("choice", [], "1 to 1024 texts"),
        ("regex", "a" * (MAX_FORMAT_CHARACTERS + 1), "at most"),
        ("json_schema", {"const": "a" * MAX_FORMAT_CHARACTERS}, "at most"),
    ],
)
def test_a_format_that_cannot_be_enforced_is_refused(kind: Any, value: Any, message: str):
    """The message gives the reason."""
    form = ContentFormat(kind, value, "p")
    with pytest.raises(InvalidFormat, match=message) as refused:
        _ = form.expression(), form.grammars
    assert refused.value.param == "p"


@pytest.mark.parametrize(
    ("pattern", "escaped"),
    [
        ("a/b", r"a\/b"),
        (r"a\/b", r"a\/b"),
        (r"a\\/b", r"a\\\/b"),
        ("a\nb", r"a\nb"),
        ("a\\\nb", r"a\nb"),
        ("[/]", r"[\/]"),
    ],
)
def test_a_pattern_stays_in_one_line_between_slashes(pattern: str, escaped: str):
    """Escaped characters stay escaped once."""
    assert escaped_pattern(pattern) == escaped


def test_properties_keep_their_order():
    """Models follow the order of a schema better than another."""
    assert not accepts(FORMATS["schema"], '{"age": 36, "name": "Ada"}')


def test_a_property_cannot_be_repeated_in_another_form():
    """An additional property whose escaped name equals that of a property would replace its value."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": True,
    }
    form = ContentFormat("json_schema", schema, "p")
    assert accepts(form, '{"a": 1, "b": "x"}')
    assert not accepts(form, '{"a": 1, "\\u0061": "x"}') and not accepts(form, '{"a": 1, "a": "x"}')


@pytest.mark.parametrize("value", ["a\0b", "\\\0", "\\u0000", "a\tb\n", "\x7f", "é\u2028", "\ud800"])
def test_a_constant_text_is_written_with_its_escapes(value: str):
    """Control characters have escapes by number, which are not allowed in other texts."""
    form = ContentFormat("json_schema", {"const": value}, "response_format")
    assert accepts(form, json.dumps(value, ensure_ascii=value == "\ud800"))
    assert not accepts(form, json.dumps(value.replace("\0", "") + "x", ensure_ascii=value == "\ud800"))


@pytest.mark.parametrize("keyword", ["title", "description", "$comment", "x-note", "x-guidance", "default"])
def test_annotations_have_no_effect(keyword: str):
    """They may have control characters, and options of llguidance inside of a schema are ignored."""
    schema = {"type": "object", "properties": {"a": {"const": 1, keyword: "a\0b"}}, keyword: {"lenient": "\x1f"}}
    form = ContentFormat("json_schema", schema, "response_format")
    assert accepts(form, '{"a": 1}') and not accepts(form, '{"a": 2}')


def test_unique_items_that_cannot_be_enforced_are_an_error_only_if_the_client_is_strict():
    """A set of integers is sent as such a schema by clients that do not ask for strictness."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert accepts(ContentFormat("json_schema", schema, "response_format", is_strict=False), "[1, 1]")
    with pytest.raises(InvalidFormat, match="uniqueItems at the root"):
        _ = ContentFormat("json_schema", schema, "response_format").grammars
