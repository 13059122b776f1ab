"""Compiled grammars (llguidance, Moskal et al.).

A grammar is a text in Lark's syntax as llguidance extends it, or a JSON object {"grammars": [...]}, whose items have
such a text as `lark_grammar`. The first one is the start; it refers to the others by their `name`. Compiling is limited
by counted work, so that every machine accepts the same grammars. For masks counted work is not enough
(`engine.constraints.mask_costs`).
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.constraints.mask_costs import ORDINARY_GRAMMAR, MaskLimits, cost_error
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
# Where a grammar allows one text only, llguidance would find that text, at a cost that no limit bounds, and then allow
# its own division of it into tokens only.
NO_FORCING = '\n%llguidance {"no_forcing": true}'
MAX_MESSAGE_CHARACTERS = 400
TOO_EXPENSIVE = "grammar_too_expensive"  # error code
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
        wrapper: Any = _Wrapper(vocabulary)
        self._tokenizer = LLTokenizer(wrapper, eos_token=list(vocabulary.eos_ids))
        self.vocabulary = vocabulary
        self.mask_limits = MaskLimits()
        with contextlib.suppress(InvalidParameter):  # of a vocabulary that cannot write JSON
            self.mask_limits = MaskLimits.measure(self.compile(ORDINARY_GRAMMAR), vocabulary.eos_ids)

    def compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the beginning of `grammar`.

        Raises `InvalidParameter` for a grammar that is wrong, too large or cannot be satisfied.
        """
        matcher = LLMatcher(self._tokenizer, _without_forcing(grammar), log_level=0, limits=LIMITS)
        if not matcher.is_error() and not any(matcher.compute_bitmask()):
            raise InvalidParameter(NO_TEXT_MESSAGE, param="grammar")
        if matcher.is_error():  # of the grammar or of its first mask
            raise InvalidParameter(error_message(matcher), param="grammar")
        return matcher

    def cost_error(self, matcher: LLMatcher) -> str:
        """Return why masks of a grammar cost too much, by a random walk that advances `matcher`; else ""."""
        return cost_error(matcher, self.mask_limits, self.vocabulary.eos_ids)


def error_message(matcher: LLMatcher) -> str:
    """Return the error of a matcher in one line, without excerpts of the grammar."""
    text = _EXCERPT.sub("", matcher.get_error()).replace("<non-verbose/>", "")
    message = _PREFIX.sub("", " ".join(text.split()))
    if message in ("NoExtension", "NoExtensionBias"):
        return NO_TEXT_MESSAGE
    for theirs, ours in _WORDING:
        message = message.replace(theirs, ours)
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:MAX_MESSAGE_CHARACTERS]}..."


def _without_forcing(grammar: str) -> str:
    """Return a grammar with the option NO_FORCING, which need only be in the first text."""
    if not grammar.startswith("{"):
        return grammar + NO_FORCING
    form = msgspec.json.decode(grammar)
    form["grammars"][0]["lark_grammar"] += NO_FORCING
    return msgspec.json.encode(form).decode()


class _Wrapper:
    """Tokens in the form in which llguidance reads a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_ids[0]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar forces, of which there is none with NO_FORCING."""
        raise NotImplementedError
