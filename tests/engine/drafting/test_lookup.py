"""Drafts by lookup, against a search of the whole text."""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.drafting.lookup import HASH, MAX_CANDIDATES, MAX_MATCH, NO_DRAFT, ROOM, Draft, Lookup

ALL = 1 << 20
texts = st.lists(st.integers(0, 3), min_size=1, max_size=200) | st.lists(
    st.integers(0, 200_000), min_size=1, max_size=40
)
limits = st.integers(1, 9)


def indexed(tokens: list[int]) -> Lookup:
    lookup = Lookup(tokens)
    lookup.index(ALL)
    return lookup


def matching(tokens: list[int], place: int) -> int:
    """Return how many tokens up to `place` equal the last ones of the text."""
    match = 0
    while match < MAX_MATCH and match <= place and tokens[place - match] == tokens[-1 - match]:
        match += 1
    return match


def search(tokens: list[int], limit: int) -> Draft:
    """Return the draft after the longest match among the latest places of the last two tokens."""
    places = [place for place in range(len(tokens) - 2, 0, -1) if matching(tokens, place) > 1][:MAX_CANDIDATES]
    if not places:
        return NO_DRAFT
    best = max(places, key=lambda place: (matching(tokens, place), place))
    period = tokens[best + 1 :]
    return Draft(tuple((period * limit)[:limit]), matching(tokens, best))


def has_collisions(tokens: list[int]) -> bool:
    """Return whether two pairs of a text have the same hash."""
    mask = (1 << (len(tokens) + ROOM).bit_length()) - 1
    pairs = set(pairwise(tokens))
    return len({(one * HASH[0] ^ other * HASH[1]) & mask for one, other in pairs}) < len(pairs)


@given(texts, limits)
def test_a_draft_is_the_one_that_a_search_finds(tokens: list[int], limit: int):
    """The longest match of the latest 16 places, and of equal ones the latest."""
    assume(not has_collisions(tokens))
    assert indexed(tokens).draft(limit) == search(tokens, limit)


@given(texts, limits)
def test_a_draft_followed_the_last_two_tokens_before(tokens: list[int], limit: int):
    """With collisions of hashes too: none is made up, and none is longer than asked for."""
    draft = indexed(tokens).draft(limit)
    if draft == NO_DRAFT:
        return
    assert 2 <= draft.match <= MAX_MATCH and 1 <= len(draft.tokens) <= limit
    longer = tokens + list(draft.tokens)  # in which a period that the draft continues is found too
    known = longer[len(tokens) - draft.match :]
    starts = range(len(tokens) - draft.match)
    assert any(longer[start : start + len(known)] == known for start in starts)


@given(texts, st.lists(st.integers(0, 50), max_size=30), limits)
def test_the_portions_of_the_index_change_no_draft(tokens: list[int], portions: list[int], limit: int):
    """The text may also grow meanwhile."""
    growing = tokens[: 1 + len(tokens) // 2]
    lookup = Lookup(growing)
    for portion in portions:
        missing = lookup.num_missing
        assert lookup.index(portion) == min(portion, missing)
        assert lookup.num_missing == missing - min(portion, missing)
        growing += tokens[len(growing) : len(growing) + 3]
    growing += tokens[len(growing) :]
    if lookup.num_missing:
        assert lookup.draft(limit) == NO_DRAFT, "the last tokens are not indexed"
    lookup.index(ALL)
    if not has_collisions(tokens):
        assert lookup.draft(limit) == indexed(tokens).draft(limit)


def test_a_period_goes_on():
    """A list in which only one token repeats is guessed as far as one of many."""
    assert indexed([9, 5, 5, 5, 5, 5]).draft(4).tokens == (5, 5, 5, 5)
    assert indexed([9, 1, 2, 3, 1, 2, 3, 1, 2]).draft(5).tokens == (3, 1, 2, 3, 1)


@pytest.mark.parametrize("size", [1, 2])
def test_a_text_of_up_to_two_tokens_has_no_draft(size: int):
    """There is no earlier pair."""
    assert indexed([5] * size).draft(3) == NO_DRAFT


def test_a_longer_match_wins_over_a_later_one():
    """Of two places with the same pair."""
    assert indexed([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]).draft(1) == Draft((7,), 3)
    assert indexed([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3]).draft(2) == Draft((8, 1), 3)


@pytest.mark.parametrize(("between", "draft"), [(MAX_CANDIDATES - 1, Draft((7,), 3)), (MAX_CANDIDATES, Draft((9,), 2))])
def test_a_longer_match_is_looked_for_in_the_latest_places(between: int, draft: Draft):
    """In 16 of them, so that the time of a draft is bounded in any text."""
    later = [token for _ in range(between) for token in (2, 3, 9)]
    assert indexed([1, 2, 3, 7, *later, 1, 2, 3]).draft(1) == draft


def test_another_pair_with_the_same_hash_gives_no_draft():
    """Nor if its second token is the last one."""
    before = 3 + (1 << (5 + ROOM).bit_length())
    text = [before, 5, 7, 3, 5]
    assert has_collisions(text) and indexed(text).draft(1) == NO_DRAFT


def test_the_index_takes_at_most_16_bytes_a_token():
    """Of a text of 10,000 tokens, known at once or grown to that length."""
    rng = random.Random(1)
    tokens = [rng.randrange(100_000) for _ in range(10_000)]
    for first in (10_000, 100):
        growing = tokens[:first]
        lookup = Lookup(growing)
        growing += tokens[first:]
        lookup.index(ALL)
        assert sys.getsizeof(lookup._earlier) + sys.getsizeof(lookup._latest) <= 16 * len(tokens)
