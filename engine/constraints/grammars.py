"""Compiled grammars (llguidance, Moskal et al.).

A grammar is a text in Lark's syntax as llguidance extends it, or a JSON object with a list of grammars and JSON
schemas. Compiling and masks are limited by counted work instead of time, so that every machine accepts the same
grammars.
"""

from __future__ import annotations

import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import InvalidParameter
from engine.types import Vocabulary

LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    initial_lexer_fuel=1_000_000,  # of a compilation; 50,000 a millisecond
    step_lexer_fuel=100_000,  # of a mask; 14,000 a millisecond
    step_max_items=50_000,  # of a mask; 20,000 a millisecond
    max_lexer_states=50_000,  # 2 kB each
    max_grammar_size=200_000,  # symbols
    verbose_errors=False,
)
MAX_MESSAGE_CHARACTERS = 400
NO_TEXT_MESSAGE = "no text satisfies it"
_EXCERPT = re.compile(r"\n\s*\d+ \|.*", re.DOTALL)  # numbered lines of the grammar, and a mark below the position
_PREFIX = re.compile(r"^at \d+\(\d+\): ")  # a position in a grammar that its author has not seen
_WORDING = (
    ("failed to compile JSON schema: ", ""),
    ("Unimplemented keys: ", "unsupported keywords: "),
    ("is not present in a registry and retrieving it failed: Default retriever does not fetch resources",
     "cannot be referenced, only parts of the same schema can"),
    ("json-schema:///", ""),
)  # fmt: skip


class GrammarTokenizer:
    """Vocabulary of a model in llguidance's form. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `InvalidParameter` for a model without an end token, whose constrained answers would never end."""
        if not vocabulary.eos_ids:
            raise InvalidParameter("this model has no token that ends a text, so no format can be enforced")
        self._ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}
        self._longest = max(map(len, self._ids), default=1)
        wrapper: Any = _Wrapper(vocabulary, self._tokenize)
        self._tokenizer = LLTokenizer(wrapper, eos_token=list(vocabulary.eos_ids))

    def compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the beginning of `grammar`.

        Raises `InvalidParameter` for a grammar that is wrong, too large or cannot be satisfied.
        """
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error() and not any(matcher.compute_bitmask()):
            raise InvalidParameter(NO_TEXT_MESSAGE, param="grammar")
        if matcher.is_error():  # of the grammar or of its first mask
            raise InvalidParameter(error_message(matcher), param="grammar")
        return matcher

    def _tokenize(self, text: bytes) -> list[int]:
        """Return the ids of a text that a grammar forces: at each position the longest token."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), 0)
            if not end:
                break
            ids.append(self._ids[text[at:end]])
            at = end
        return ids


def error_message(matcher: LLMatcher) -> str:
    """Return the error of a matcher in one line, without excerpts of the grammar."""
    text = _EXCERPT.sub("", matcher.get_error()).replace("<non-verbose/>", "")
    message = _PREFIX.sub("", " ".join(text.split()))
    if message in ("NoExtension", "NoExtensionBias"):
        return NO_TEXT_MESSAGE
    for theirs, ours in _WORDING:
        message = message.replace(theirs, ours)
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:MAX_MESSAGE_CHARACTERS]}..."


class _Wrapper:
    """Tokenizer in the form that llguidance reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, tokenize: Any) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_ids[0]
        self._tokenize = tokenize

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._tokenize(text.encode())
        return ids
