"""Limits of the processor time of masks, in a vocabulary of the usual size."""

from __future__ import annotations

import random

import pytest

from engine.constraints.constraint import Grammar, GrammarConstraint
from engine.constraints.grammars import TOO_EXPENSIVE, GrammarTokenizer
from engine.constraints.mask_costs import MaskCosts, MaskLimits
from engine.constraints.mask_threads import MaskThreads
from engine.types import Vocabulary

NUM_WORDS = 40_000
LIMITS = MaskLimits(0.002, 0.01)
# Grammars of some 50 bytes that match one text in many ways.
EXPENSIVE = ('start: (((("a"?){1,50}){1,50}){1,50}){1,50}', "start: x\nx: x x | x x x | /[a-z ]/ |")
ORDINARY = 'start: %json {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}'


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    """Return a tokenizer with bytes, runs of a letter, and random words."""
    rng = random.Random(1)
    words = {"".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=rng.randint(2, 8))) for _ in range(NUM_WORDS)}
    texts = sorted(words | {"a" * length for length in range(2, 5)})
    tokens = (b"<eos>", *(bytes([byte]) for byte in range(256)), *(text.encode() for text in texts))
    return GrammarTokenizer(Vocabulary(tokens, (0,), (0,)))


@pytest.mark.parametrize("grammar", EXPENSIVE)
def test_a_random_walk_finds_expensive_masks(tokenizer: GrammarTokenizer, grammar: str):
    """The grammars compile within the counted limits."""
    message = tokenizer.cost_error(tokenizer.compile(grammar))
    assert message.startswith("its tokens take more than ")


@pytest.mark.parametrize("grammar", [ORDINARY, "start: /[a-z]+( [a-z]+)*/", 'start: "yes" | "no"'])
def test_ordinary_masks_are_within_the_limits(tokenizer: GrammarTokenizer, grammar: str):
    """Also where a walk ends early."""
    assert tokenizer.cost_error(tokenizer.compile(grammar)) == ""


@pytest.mark.parametrize("grammar", EXPENSIVE)
def test_a_text_with_expensive_masks_ends(tokenizer: GrammarTokenizer, grammar: str):
    """Its last mask allows no token, and the failure has a code of its own."""
    threads = MaskThreads()
    constraint = GrammarConstraint(Grammar(tokenizer.compile(grammar), tokenizer), threads)
    token = tokenizer.vocabulary.tokens.index(b"aaa")
    for _ in range(20):
        constraint.prepare_mask()
        while not constraint.is_ready:
            threads.wait_for_any(1.0)
        if constraint.failure is not None:
            break
        constraint.consume(token)
    assert constraint.failure is not None and constraint.failure.code == TOO_EXPENSIVE
    assert constraint.take_seconds() > 0.0 and constraint.take_seconds() == 0.0


@pytest.mark.parametrize(
    ("seconds", "exceeds_at"),
    [
        ([0.0019] * 100, None),
        ([0.0021] * 100, 16),
        ([0.011, 0.011, 0.011], 3),
        ([0.009] * 3, None),
        ([0.011, 0.011, *[0.0001] * 50], None),
        ([0.011, *[0.0001] * 50, 0.011, *[0.0001] * 50, 0.011], 103),
        ([0.0001] * 8 + [0.0041] * 8, 16),
    ],
)
def test_the_mean_and_peaks_are_limited(seconds: list[float], exceeds_at: int | None):
    """A few expensive tokens are allowed; a third peak is not, however late it comes."""
    costs = MaskCosts(LIMITS)
    exceeded = []
    for mask in seconds:
        costs.add(mask)
        exceeded.append(costs.are_exceeded)
    assert (exceeded.index(True) + 1 if True in exceeded else None) == exceeds_at
