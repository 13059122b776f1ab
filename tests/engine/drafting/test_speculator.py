"""Worths of a sequence's drafts, and their pauses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafting.lookup import LONG_MATCH, Draft
from engine.drafting.note import ANSWERS, LOOKUP
from engine.drafting.speculator import FIRST_PAUSE, MAX_DRAFTS, MAX_PAUSE, START, START_FORCED, Speculator

SHORT, LONG = LONG_MATCH - 1, LONG_MATCH
outcomes = st.tuples(st.sampled_from([2, SHORT, LONG, 16]), st.integers(1, MAX_DRAFTS), st.integers(0, MAX_DRAFTS))


def draft_of(match: int, source: str = LOOKUP, forced: int = 0) -> Draft:
    """Return a draft whose first tokens are forced."""
    is_forced = (True,) * forced + (False,) * (MAX_DRAFTS - forced) if forced else ()
    return Draft((0,) * MAX_DRAFTS, match, source, is_forced)


def worths(speculator: Speculator, match: int, source: str = LOOKUP) -> list[float]:
    return speculator.worths(draft_of(match, source))


def learn(speculator: Speculator, draft: Draft, drafts: int, right: int) -> None:
    speculator.draft = draft
    speculator.learn(drafts, right, 0)


@given(st.lists(outcomes, max_size=200))
def test_worths_are_falling_probabilities(history: list[tuple[int, int, int]]):
    """After any history, for short and long matches, one for each draft."""
    speculator = Speculator([])
    for match, drafts, right in history:
        learn(speculator, draft_of(match), drafts, min(right, drafts))
        for values in (worths(speculator, SHORT), worths(speculator, LONG)):
            assert len(values) == MAX_DRAFTS and values[-1] >= 0.0 and values[0] <= 1.0
            assert all(later <= earlier for earlier, later in pairwise(values))
        assert len(speculator.worths(Draft((1, 2), match))) == 2


@pytest.mark.parametrize("kind", [(SHORT, LOOKUP), (LONG, LOOKUP), (SHORT, ANSWERS), (LONG, ANSWERS)])
def test_right_drafts_raise_all_worths_and_only_of_their_kind(kind: tuple[int, str]):
    """Up to nearly 1."""
    speculator = Speculator([])
    others = [(m, s) for m in (SHORT, LONG) for s in (LOOKUP, ANSWERS) if (m, s) != kind]
    before, untouched = worths(speculator, *kind), [worths(speculator, *other) for other in others]
    for _ in range(40):
        learn(speculator, draft_of(*kind), MAX_DRAFTS, MAX_DRAFTS)
        after = worths(speculator, *kind)
        assert all(new > old for new, old in zip(after, before, strict=True))
        before = after
    assert before[-1] > 0.99 and [worths(speculator, *other) for other in others] == untouched


def test_a_wrong_draft_lowers_the_worth_of_those_after_it():
    """Drafts that were not reached teach nothing."""
    speculator = Speculator([])
    before = worths(speculator, SHORT)
    learn(speculator, draft_of(SHORT), 4, 1)
    after = worths(speculator, SHORT)
    assert after[0] > before[0] and after[1] / after[0] < before[1] / before[0]
    assert after[2] / after[1] == pytest.approx(before[2] / before[1])


def test_the_first_steps_teach_the_most():
    """One failure halves what was expected, and the tenth takes a fifth of it."""
    speculator, firsts = Speculator([]), []
    for _ in range(10):
        firsts.append(worths(speculator, LONG)[0])
        learn(speculator, draft_of(LONG), 1, 0)
    firsts.append(worths(speculator, LONG)[0])
    shares = [later / earlier for earlier, later in pairwise(firsts)]
    assert shares[0] == pytest.approx(0.5) and shares[-1] == pytest.approx(0.8) and shares[4] == pytest.approx(0.8)


def test_forced_tokens_have_odds_of_their_own():
    """The same at each position, and those of a lookup are untouched."""
    speculator, draft = Speculator([]), draft_of(SHORT, forced=3)
    assert speculator.worths(draft)[:3] == pytest.approx([START_FORCED**n for n in (1, 2, 3)])
    for _ in range(20):
        learn(speculator, draft, 3, 3)
    assert speculator.worths(draft)[2] > 0.99 and worths(speculator, SHORT)[0] == START[0]
    speculator.decline(10)
    assert speculator.may_use(draft, 10), "forced tokens do not pause"


def decline(speculator: Speculator, draft: Draft, length: int) -> int:
    """Return how many tokens the pause takes after a draft that is not worth its time."""
    speculator.draft = draft
    speculator.decline(length)
    pause = next(n for n in range(2 * MAX_PAUSE) if speculator.may_use(draft, length + n))
    assert speculator.worths(draft) == [1.0], "a single draft is tried after the pause"
    return pause


def test_pauses_double_up_to_a_limit_until_a_trial_is_right():
    """Drafts of other kinds do not pause."""
    speculator, draft, length, pauses = Speculator([]), draft_of(SHORT), 0, []
    for _ in range(7):
        pauses.append(decline(speculator, draft, length))
        length += pauses[-1]
        learn(speculator, draft, 1, 0)
        assert len(speculator.worths(draft)) == MAX_DRAFTS, "one trial"
    assert pauses == [min(FIRST_PAUSE << n, MAX_PAUSE) for n in range(7)] and pauses[-2:] == [MAX_PAUSE] * 2
    assert speculator.may_use(draft_of(LONG), 0) and speculator.may_try(LOOKUP, 0)
    learn(speculator, draft, 1, 1)
    assert decline(speculator, draft, length) == FIRST_PAUSE


def test_a_source_is_not_asked_while_all_of_its_drafts_pause():
    """Other sources are."""
    speculator = Speculator([])
    decline(speculator, draft_of(SHORT), 100)
    decline(speculator, draft_of(LONG), 105)
    assert not speculator.may_try(LOOKUP, 110) and speculator.may_try(ANSWERS, 110)
    assert speculator.may_try(LOOKUP, 100 + FIRST_PAUSE)
