"""Compiled grammars: masks, errors in plain words, and the vocabulary."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engine.constraints.constraint import Grammar, GrammarConstraint
from engine.constraints.grammars import GrammarTokenizer
from engine.constraints.mask_threads import MaskThreads
from engine.errors import InvalidParameter
from engine.types import Vocabulary

EOS = 0
BYTES = Vocabulary((b"<eos>", *(bytes([byte]) for byte in range(256)), b"abc", b""), (EOS,), (EOS,))


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(BYTES)


def constrain(tokenizer: GrammarTokenizer, grammar: str) -> GrammarConstraint:
    return GrammarConstraint(Grammar(tokenizer.compile(grammar), tokenizer), MaskThreads())


def allowed(constraint: GrammarConstraint) -> set[bytes]:
    """Return the tokens that may come next."""
    constraint.prepare_mask()
    while not constraint.is_ready:
        constraint._threads.wait_for_any(1.0)
    words = np.zeros(-(-len(BYTES.tokens) // 32), np.uint32)
    constraint.write_masks(words.ctypes.data, words.nbytes)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return {BYTES.tokens[token_id] for token_id in np.flatnonzero(bits)}


def test_a_mask_has_the_tokens_that_continue_the_text(tokenizer: GrammarTokenizer):
    """A token of several bytes is one of them, and the end token only after a complete text."""
    constraint = constrain(tokenizer, 'start: "a" /[bx]/ /[cy]?/')
    assert allowed(constraint) == {b"a", b"abc"}
    constraint.consume(1 + ord("a"))
    assert allowed(constraint) == {b"b", b"x"}
    constraint.consume(1 + ord("x"))
    assert allowed(constraint) == {b"c", b"y", b"<eos>"}
    constraint.consume(1 + ord("c"))
    assert allowed(constraint) == {b"<eos>"}


def test_a_text_that_is_forced_may_be_divided_in_any_way(tokenizer: GrammarTokenizer):
    """The model decides how, and the text is not computed in advance, however long it is."""
    constraint = constrain(tokenizer, "start: /(abc){1000000}/")
    for _ in range(100):
        assert allowed(constraint) == {b"a", b"abc"}
        constraint.consume(BYTES.tokens.index(b"abc"))


def test_the_option_against_forced_tokens_holds_in_every_form(tokenizer: GrammarTokenizer):
    """Only the first of several grammars has it."""
    grammars = [{"lark_grammar": "start: @other"}, {"name": "other", "lark_grammar": 'start: "abc"'}]
    constraint = constrain(tokenizer, json.dumps({"grammars": grammars}))
    assert allowed(constraint) == {b"a", b"abc"}


def test_a_token_that_does_not_fit_leaves_no_token(tokenizer: GrammarTokenizer):
    """The error says what did not fit."""
    constraint = constrain(tokenizer, 'start: "ab"')
    constraint.consume(1 + ord("x"))
    assert allowed(constraint) == set() and "doesn't satisfy the grammar" in constraint.failure.message


def test_copies_advance_independently(tokenizer: GrammarTokenizer):
    """All choices of a request begin with copies of one compiled grammar."""
    first, threads = Grammar(tokenizer.compile('start: "a" | "b"'), tokenizer), MaskThreads()
    one, other = GrammarConstraint(first, threads), GrammarConstraint(first, threads)
    one.consume(1 + ord("a"))
    assert allowed(one) == {b"<eos>"} and allowed(other) == {b"a", b"b"}


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('start: "a', "1(10): lexer error"),
        ("start: missing", 'unknown name: "missing"'),
        ("start: a\na: b\nb: a", "no text satisfies it"),
        ("start: %json " + json.dumps({"if": {}, "then": {}}), 'unsupported keywords: ["if", "then"]'),
        (
            'start: %json {"$ref": "http://example.com/a.json"}',
            "Resource 'http://example.com/a.json' cannot be referenced, only parts of the same schema can",
        ),
        ('start: %json {"type": "strin"}', "Invalid type: strin"),
    ],
)
def test_an_error_is_one_sentence_without_the_grammar(tokenizer: GrammarTokenizer, grammar: str, message: str):
    """The author of a schema has never seen the grammar that is made of it."""
    with pytest.raises(InvalidParameter) as refused:
        tokenizer.compile(grammar)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_a_model_without_an_end_token_has_no_grammars():
    """Its texts would never be complete."""
    with pytest.raises(InvalidParameter, match="no token that ends a text"):
        GrammarTokenizer(Vocabulary(BYTES.tokens, (), ()))
