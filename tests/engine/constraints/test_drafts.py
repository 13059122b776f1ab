"""Masks after drafts: they equal those of the text itself, and change nothing for it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.constraints import constraint as constraint_module
from engine.constraints.constraint import FIRST_PAUSE, Grammar, GrammarConstraint, ReasoningConstraint
from engine.constraints.forced import forced_token
from engine.constraints.grammars import GrammarTokenizer
from engine.constraints.mask_threads import MaskThreads
from engine.scheduling.constraint import NO_DRAFTS, Constraint
from engine.types import ReasoningLimit, Vocabulary

EOS = 0
WORDS = (b"abc", b'"na', b'name"', b'":', b'": "', b"true", b"12", b', "')
TOKENS = (b"<eos>", *(bytes([byte]) for byte in range(256)), *WORDS)
VOCABULARY = Vocabulary(TOKENS, (EOS,), (EOS,))
TOKENIZER = GrammarTokenizer(VOCABULARY)
SIZE = -(-len(TOKENS) // 32)
GRAMMARS = (
    'start: %json {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "size": {"type": '
    '"integer"}}, "required": ["name", "size"], "additionalProperties": false}',
    "start: /(abc){1,9}[0-9]*/",
    'start: ("name" | "note") (", " start)?',
    "start: /(.|\\n)*/",
)
MAX_DRAFTS = 7


def constrain(grammar: str) -> GrammarConstraint:
    return GrammarConstraint(Grammar(TOKENIZER.compile(grammar), TOKENIZER), THREADS)


THREADS = MaskThreads()


def wait(constraint: Constraint) -> None:
    while not constraint.is_ready:
        THREADS.wait_for_any(0.1)


def masks(constraint: Constraint, count: int = 1) -> list[list[int]]:
    """Return the allowed tokens of the next position and of those after drafts."""
    words = np.zeros((count, SIZE), np.uint32)
    constraint.write_masks(words.ctypes.data, words[0].nbytes, count)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]


def next_mask(constraint: Constraint) -> list[int]:
    constraint.prepare_mask()
    wait(constraint)
    return masks(constraint)[0]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(GRAMMARS), st.randoms(use_true_random=False))
def test_masks_after_drafts_are_those_of_the_text(grammar: str, rng: random.Random):
    """Along a random text with right, wrong and forbidden proposals: a constraint that has drafted, and one that
    follows the drafts as its text, allow the same tokens as one that has never drafted."""
    plain, drafted = constrain(grammar), constrain(grammar)
    text: list[int] = []
    for _ in range(12):
        allowed = next_mask(plain)
        if not allowed:
            break
        proposal = [rng.choice((rng.choice(allowed), rng.randrange(len(TOKENS)))) for _ in range(rng.randrange(6))]
        limit = rng.randint(0, MAX_DRAFTS)
        drafted.prepare_mask(proposal, limit)
        wait(drafted)
        drafts = drafted.drafts
        assert len(drafts.tokens) == len(drafts.is_forced) <= limit and EOS not in drafts.tokens
        found = masks(drafted, 1 + len(drafts.tokens))
        assert found[0] == allowed
        follower = constrain(grammar)
        for token in text:
            follower.consume(token)
        for index, token in enumerate(drafts.tokens):
            assert token in found[index]
            follower.consume(token)
            assert next_mask(follower) == found[1 + index]
        chosen = rng.choice(allowed)
        if chosen == EOS:
            break
        text.append(chosen)
        plain.consume(chosen)
        drafted.consume(chosen)
    assert drafted.failure == plain.failure


class ThreadClock:
    """Processor time of masks after drafts, each of which takes 50 ms; others take none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        compute = GrammarConstraint._compute_mask

        def compute_slowly(constraint: GrammarConstraint, index: int) -> None:
            compute(constraint, index)
            self.now += 0.05 if index else 0.0

        monkeypatch.setattr(GrammarConstraint, "_compute_mask", compute_slowly)
        monkeypatch.setattr(constraint_module, "time", self)

    def thread_time(self) -> float:
        return self.now


def test_dear_masks_after_drafts_pause_the_drafts_of_their_grammar(monkeypatch: pytest.MonkeyPatch):
    """For all texts of it, each time twice as long. No text ends because of them."""
    ThreadClock(monkeypatch)
    grammar = Grammar(TOKENIZER.compile("start: /[a-z]*/"), TOKENIZER)

    def has_drafts() -> bool:
        constraint = GrammarConstraint(grammar, THREADS)
        constraint.prepare_mask((1 + ord("a"),), 1)
        wait(constraint)
        assert constraint.failure is None
        return bool(constraint.drafts.tokens)

    def masks_until_drafts() -> int:
        masks = 1
        while not has_drafts():
            masks += 1
        return masks

    assert has_drafts()
    assert [masks_until_drafts() for _ in range(2)] == [FIRST_PAUSE, 2 * FIRST_PAUSE]


def test_forced_texts_are_drafted_without_a_proposal():
    """The longest token of a text that nothing may replace, as far as it is known."""
    constraint = constrain('start: /[{]"name": [0-9]+/')
    constraint.prepare_mask((), MAX_DRAFTS)
    wait(constraint)
    text = b"".join(TOKENS[token] for token in constraint.drafts.tokens)
    assert text == b'{"name": ' and len(constraint.drafts.tokens) < len(text) and all(constraint.drafts.is_forced)
    constraint = constrain("start: /[a-z]+/")
    constraint.prepare_mask((), MAX_DRAFTS)
    wait(constraint)
    assert constraint.drafts == NO_DRAFTS


def test_a_proposal_goes_before_a_forced_text():
    """It divides the text as the model did before; a forbidden token ends it, and forced ones follow."""
    constraint = constrain("start: /(abc){4}/")
    constraint.prepare_mask((1 + ord("a"), 1 + ord("b"), 1 + ord("x")), 4)
    wait(constraint)
    abc = TOKENS.index(b"abc")
    assert constraint.drafts.tokens == (1 + ord("a"), 1 + ord("b"), 1 + ord("c"), abc)
    assert constraint.drafts.is_forced == (False, False, True, True)


def test_the_end_of_a_text_is_no_draft():
    """The row before it samples it."""
    constraint = constrain("start: /ab/")
    constraint.prepare_mask((1 + ord("a"), 1 + ord("b"), EOS), MAX_DRAFTS)
    wait(constraint)
    assert constraint.drafts.tokens == (1 + ord("a"), 1 + ord("b"))


def test_an_error_of_drafts_does_not_end_the_text(monkeypatch: pytest.MonkeyPatch):
    """The matcher follows the text anew, and has no further drafts."""
    constraint, plain = constrain(GRAMMARS[1]), constrain(GRAMMARS[1])
    for token in b"abc":
        constraint.consume(1 + token)
        plain.consume(1 + token)
    monkeypatch.setattr(constraint_module, "is_allowed", lambda mask, token: True)
    constraint.prepare_mask((1 + ord("x"),), 3)
    wait(constraint)
    assert constraint.drafts == NO_DRAFTS and masks(constraint)[0] == next_mask(plain)
    for token in b"abca":
        constraint.consume(1 + token)
        plain.consume(1 + token)
        constraint.prepare_mask((1 + ord("b"),), 3)
        wait(constraint)
        assert constraint.failure is None
        assert constraint.drafts == NO_DRAFTS and masks(constraint)[0] == next_mask(plain)


def test_drafts_that_take_long_are_few(monkeypatch: pytest.MonkeyPatch):
    """Their masks have a limit of processor time."""
    monkeypatch.setattr(constraint_module, "MAX_DRAFT_SECONDS", 0.0)
    constraint = constrain(GRAMMARS[3])
    constraint.prepare_mask((1, 2, 3), 3)
    wait(constraint)
    assert constraint.drafts == NO_DRAFTS


@pytest.mark.parametrize(("used", "drafts"), [(0, 3), (5, 3), (6, 2), (7, 1), (8, 0)])
def test_drafts_end_before_a_limit_of_reasoning(used: int, drafts: int):
    """A closing token would be due after them."""
    limit = ReasoningLimit(max_tokens=9, closing_ids=(1, 2), open_tag=b"", close_tag=b"</think>")
    constraint = ReasoningConstraint(limit, TOKENS, None)
    for _ in range(used):
        constraint.consume(1 + ord("x"))
    constraint.prepare_mask((5, 6, 7), 3)
    assert constraint.drafts.tokens == (5, 6, 7)[:drafts] and not constraint.is_active
    constraint.consume(1 + ord("x"))
    assert constraint.drafts == NO_DRAFTS


def test_tokens_are_forced_if_all_others_begin_their_text():
    """The longest one is; not if there are two texts, or many tokens."""
    tokens = [b"a", b"ab", b"abc", b"x", *[b""] * 60]

    def mask(*ids: int) -> np.ndarray:
        words = np.zeros(2, np.uint32)
        for token in ids:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words.view(np.int32)

    assert forced_token(mask(0, 1, 2), tokens) == 2
    assert forced_token(mask(1), tokens) == 1
    assert forced_token(mask(0, 1, 3), tokens) is None
    assert forced_token(mask(), tokens) is None
    assert forced_token(mask(*range(4, 60)), tokens) is None
