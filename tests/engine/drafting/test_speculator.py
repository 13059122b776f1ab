"""Worths of a sequence's drafts, and its pauses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafting.lookup import LONG_MATCH, Draft
from engine.drafting.note import LOOKUP
from engine.drafting.speculator import FIRST_PAUSE, MAX_DRAFTS, MAX_PAUSE, Speculator

SHORT, LONG = LONG_MATCH - 1, LONG_MATCH
outcomes = st.tuples(st.sampled_from([2, SHORT, LONG, 16]), st.integers(1, MAX_DRAFTS), st.integers(0, MAX_DRAFTS))


def worths(speculator: Speculator, match: int) -> list[float]:
    return speculator.worths(Draft((0,) * MAX_DRAFTS, match))


@given(st.lists(outcomes, max_size=200))
def test_worths_are_falling_probabilities(history: list[tuple[int, int, int]]):
    """After any history, for short and long matches, one for each draft."""
    speculator = Speculator([])
    for length, (match, drafts, right) in enumerate(history):
        speculator.draft = Draft((0,) * MAX_DRAFTS, match)
        speculator.learn(drafts, min(right, drafts), length)
        for values in (worths(speculator, SHORT), worths(speculator, LONG)):
            assert len(values) == MAX_DRAFTS and values[-1] >= 0.0 and values[0] <= 1.0
            assert all(later <= earlier for earlier, later in pairwise(values))
        assert len(speculator.worths(Draft((1, 2), match))) == 2


@pytest.mark.parametrize("match", [SHORT, LONG])
def test_right_drafts_raise_all_worths_and_only_of_such_matches(match: int):
    """Up to nearly 1."""
    speculator = Speculator([])
    speculator.draft, other = Draft((0,) * MAX_DRAFTS, match), SHORT + LONG - match
    before, untouched = worths(speculator, match), worths(speculator, other)
    for length in range(40):
        speculator.learn(MAX_DRAFTS, MAX_DRAFTS, length)
        after = worths(speculator, match)
        assert all(new > old for new, old in zip(after, before, strict=True))
        before = after
    assert before[-1] > 0.99 and worths(speculator, other) == untouched and speculator.odds[LOOKUP].resumes_at == 0


def test_a_wrong_draft_lowers_the_worth_of_those_after_it():
    """Drafts that were not reached teach nothing."""
    speculator = Speculator([])
    before = worths(speculator, SHORT)
    speculator.learn(4, 1, 10)
    after = worths(speculator, SHORT)
    assert after[0] > before[0] and after[1] / after[0] < before[1] / before[0]
    assert after[2] / after[1] == pytest.approx(before[2] / before[1])


def fail(speculator: Speculator, length: int) -> int:
    """Fail until there is a pause, and return its length."""
    before = speculator.odds[LOOKUP].resumes_at
    for _ in range(50):
        speculator.learn(1, 0, length)
        if speculator.odds[LOOKUP].resumes_at != before:
            return speculator.odds[LOOKUP].resumes_at - length
    raise AssertionError("no pause")


def test_pauses_double_up_to_a_limit():
    """Each further failure, until a draft is right."""
    speculator, length, pauses = Speculator([]), 0, []
    for _ in range(7):
        pauses.append(fail(speculator, length))
        length = speculator.odds[LOOKUP].resumes_at
    assert pauses == [FIRST_PAUSE << n if FIRST_PAUSE << n < MAX_PAUSE else MAX_PAUSE for n in range(7)]
    assert pauses[-2:] == [MAX_PAUSE] * 2
    speculator.learn(1, 1, length)
    assert speculator.odds[LOOKUP].resumes_at == length, "no new pause"
    assert fail(speculator, length + 1) == FIRST_PAUSE


def test_there_is_no_pause_before_a_draft_has_failed_several_times():
    """One wrong draft is no sign of a text that cannot be guessed."""
    speculator = Speculator([])
    for length in range(3):
        speculator.learn(MAX_DRAFTS, 0, length)
        assert speculator.odds[LOOKUP].resumes_at == 0
