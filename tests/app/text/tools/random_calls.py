"""Random tools, and random texts that a grammar accepts, for the laws of grammars and parsers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from app.text.marks import Marks
from app.text.tools.definitions import Tool
from tests.app.text.tools.test_grammar import EOS, FIRST_SPECIAL, compile_grammar

MAX_TOKENS = 1200
# Texts in which a parser may see an end, a beginning or an escape that is none.
FRAGMENTS = [
    "\n</parameter>\n", "</parameter>", "</para", "\n<parameter=a>\n", "</function>", "\n</function>\n</tool_call>",
    "<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>", "</arg_value>", "</arg", "</think>", "<think>", "[ARGS]",
    "[TOOL_CALLS]", "<｜tool▁call▁end｜>", "\n```", "<|python_tag|>", "<|message|>", "<|end|>", "é😀", "True", "None",
    "\\u00", "\\ud83d", "\\12", "\\x4",
    "null", "'", '\\"', "\\\\", "\\n", "]}", "})", ", ", '": ', "<", "{", "12", "-0.5", "a=b", "\n", "  ",
]  # fmt: skip
ENDS = ["\n</parameter>\n", "</arg_value>", '"', "'", "]", "}", ")", "</function>\n", "</tool_call>", "\n"]
NAMES = ["a", "ab", "code", "n", "$top", "@id", "a<b", "a=b", "x y", "é", "a-b", "if", "name", "arguments"]
TOOL_NAMES = ["run", "run_all", "r", "name", "function", "get.weather", "a-b:c", "x1"]


def _object(members: dict[str, Any], required: set[str]) -> dict[str, Any]:
    names = [name for name in members if name in required]
    return {"type": "object", "properties": members, "required": names, "additionalProperties": False}


SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["x", "</parameter>", "it's", 'a "b"', "\n</parameter>\n", "<arg_value>", "1"]},
        {"enum": ["auto", 3, None, True]},
        {"const": "fixed"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"anyOf": [{"enum": ["p", "q"]}, {"type": "null"}]},
        {"type": ["string", "integer"]},
        {"type": "integer", "minimum": -3, "exclusiveMaximum": 40},
        {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[a-c]+$"},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 2}, inner),
        st.builds(lambda item: {"type": "object", "additionalProperties": item}, inner),
        st.builds(
            _object,
            st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3),
            st.sets(st.sampled_from(NAMES)),
        ),
    ),
    max_leaves=4,
)


@st.composite
def tools(draw: st.DrawFn) -> tuple[Tool, ...]:
    """Return one to three strict tools."""
    names = draw(st.lists(st.sampled_from(TOOL_NAMES), min_size=1, max_size=3, unique=True))
    members = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
    schemas = [_object(draw(members), draw(st.sets(st.sampled_from(NAMES)))) for _ in names]
    return tuple(Tool(name, "", schema, strict=True) for name, schema in zip(names, schemas, strict=True))


def random_tokens(grammar: str | None, special: Sequence[str], rng: random.Random) -> list[int] | None:
    """Return the tokens of a text that a grammar accepts, by a random walk among ASCII characters, fragments and
    special tokens; None if it becomes too long.
    """
    matcher = compile_grammar(grammar, special)
    ids: list[int] = []
    while not matcher.is_stopped() and not (matcher.is_accepting() and rng.random() < 0.3):
        if len(ids) > MAX_TOKENS:
            return None
        choice = rng.random()
        if choice < 0.4:
            piece = list(rng.choice(ENDS if choice < 0.25 else FRAGMENTS).encode())
            if matcher.validate_tokens(piece) == len(piece):
                assert matcher.consume_tokens(piece)
                ids += piece
                continue
        mask = matcher.compute_bitmask()
        size = FIRST_SPECIAL + len(special)
        allowed = [i for i in range(size) if i != EOS and mask[i // 8] >> i % 8 & 1 and not 128 <= i < EOS]
        marks = [token for token in allowed if token >= FIRST_SPECIAL]
        ends = [token for token in allowed if token < 128 and chr(token) in "\"'}])<\n>"]
        likely = [token for token in allowed if token < 128 and chr(token) in "ab<{[\\1 ,:"]
        for group in (marks, ends, likely):
            if group and rng.random() < 0.5:
                allowed = group
                break
        if not allowed:  # only a part of a character that has several bytes
            allowed = [token for token in range(EOS) if mask[token // 8] >> token % 8 & 1]
        ids.append(rng.choice(allowed))
        assert matcher.consume_token(ids[-1])
    return ids


def pieces_of(ids: Sequence[int], special: Sequence[str], marks: Marks) -> list[str]:
    """Return the text of each token, in which special tokens are marks. A character is whole in its last token."""
    pieces, pending = [], b""
    for token in ids:
        if token >= FIRST_SPECIAL:
            pieces.append(marks.encode(special[token - FIRST_SPECIAL]))
            continue
        pending += bytes([token])
        try:
            pieces.append(pending.decode())
            pending = b""
        except UnicodeDecodeError:
            pieces.append("")
    return pieces


def is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
