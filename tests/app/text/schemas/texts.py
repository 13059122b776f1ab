"""Texts of the grammar of a schema: whether it accepts one, and random ones."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from llguidance import LLMatcher

from app.text.schemas.json_grammar import json_value
from app.text.tools.grammar_rules import GrammarRules
from engine.constraints.grammars import GrammarTokenizer
from engine.types import Vocabulary

TOKENIZER = GrammarTokenizer(Vocabulary((b"<eos>", *(bytes([byte]) for byte in range(256))), (0,), (0,)))
ENDS = b'"}],'  # bytes that end strings, lists and objects or lead to the next value
LIKELY = b'ab"{}[]:,-.012 eE\\n'


def grammar(schema: dict[str, Any] | bool, *, is_strict: bool = True, lenient: Collection[str] = ()) -> str:
    """Return the grammar of the JSON texts of a schema."""
    rules = GrammarRules()
    rules.add("start", json_value(rules, schema, is_strict=is_strict, lenient=lenient))
    return str(rules)


def matcher(schema: dict[str, Any] | bool, *, is_strict: bool = True) -> LLMatcher:
    """Return a matcher at the beginning of a text."""
    return TOKENIZER.compile(grammar(schema, is_strict=is_strict))


def accepts(schema: dict[str, Any] | bool, text: str, *, is_strict: bool = True) -> bool:
    """Return whether a text is complete and satisfies the grammar of a schema."""
    return is_accepted(matcher(schema, is_strict=is_strict), text)


def is_accepted(start: LLMatcher, text: str) -> bool:
    """Return whether a matcher at its beginning accepts a whole text."""
    content = text.encode()
    found = start.deep_copy()
    return bool(found.try_consume_tokens([1 + byte for byte in content]) == len(content) and found.is_accepting())


def random_text(start: LLMatcher, rng: random.Random, max_bytes: int = 2000) -> str | None:
    """Return a text by a random walk that prefers to end values; None if it gets too long."""
    found = start.deep_copy()
    content = bytearray()
    while not found.is_stopped() and not (found.is_accepting() and rng.random() < 0.5):
        mask = found.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[(byte + 1) // 8] >> (byte + 1) % 8 & 1]
        if not allowed:
            break
        ends = [byte for byte in allowed if byte in ENDS]
        likely = [byte for byte in allowed if byte in LIKELY]
        chosen = ends if ends and rng.random() < 0.5 else likely if likely and rng.random() < 0.7 else allowed
        content.append(rng.choice(chosen))
        assert found.consume_token(1 + content[-1])
        if len(content) > max_bytes:
            return None
    return content.decode()
