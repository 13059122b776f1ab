"""Drafts from earlier answers, against a search of separate lists of tokens."""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.drafting.answers import END, MIN_AGREEMENT, MIN_MATCH_SHARE, RecentAnswers
from engine.drafting.lookup import HASH, MAX_CANDIDATES, MAX_MATCH, NO_DRAFT, ROOM, Draft
from engine.drafting.note import ANSWERS

ALL = 1 << 20
limits = st.integers(1, 9)
answers = (
    st.lists(st.integers(0, 1), max_size=60)
    | st.lists(st.integers(0, 3), max_size=60)
    | st.lists(st.integers(0, 200_000), max_size=10)
)
keys = st.sampled_from([b"d", b"a", b"b", b"c"])


def draft_of(tokens: tuple[int, ...], match: int) -> Draft:
    """Return a draft of earlier answers."""
    return Draft(tokens, match, ANSWERS)


def stored(*texts: list[int]) -> RecentAnswers:
    """Return a store with answers of the key "a", all of them indexed."""
    store = RecentAnswers()
    for text in texts:
        store.add(b"a", text)
    store.index(ALL)
    return store


def has_collisions(texts: list[list[int]], last: list[int]) -> bool:
    """Return whether the last pair has the hash of another pair, in the smallest table."""
    mask = (1 << ROOM.bit_length()) - 1
    text = [token for answer in texts for token in (END, *answer, END)]
    pairs = {pair for pair in pairwise(text) if pair != (last[-2], last[-1])}
    hashes = {(one * HASH[0] ^ other * HASH[1]) & mask for one, other in pairs}
    return (last[-2] * HASH[0] ^ last[-1] * HASH[1]) & mask in hashes


def search(texts: list[list[int]], last: list[int], limit: int) -> Draft:
    """Return the draft of a search in all answers."""
    found = []  # length of the match, and the tokens after it
    for text in reversed(texts):
        for end in range(len(text), 1, -1):
            matches = [n for n in range(2, MAX_MATCH + 1) if n <= end and text[end - n : end] == last[-n:]]
            if matches:
                found.append((max(matches), [*text[end:], END]))
    found = found[:MAX_CANDIDATES]
    if not found:
        return NO_DRAFT
    longest = max(match for match, _ in found)
    votes = [tokens for match, tokens in found if match >= MIN_MATCH_SHARE * longest]
    draft: list[int] = []
    while len(draft) < limit:
        following = Counter(tokens[len(draft)] for tokens in votes if tokens[: len(draft)] == draft)
        token, number = following.most_common(1)[0]  # of equal ones the first
        if token == END or number / len(votes) < MIN_AGREEMENT:
            break
        draft.append(token)
    return draft_of(tuple(draft), longest) if draft else NO_DRAFT


class Model:
    """Lists of answers by key, with the bounds of a store."""

    def __init__(self, max_tokens: int, max_key_tokens: int, max_keys: int) -> None:
        self.max_tokens, self.max_key_tokens, self.max_keys = max_tokens, min(max_key_tokens, max_tokens), max_keys
        self.texts: dict[bytes, list[list[int]]] = {}

    @staticmethod
    def size(texts: list[list[int]]) -> int:
        return 1 + sum(len(text) + 1 for text in texts)

    @property
    def num_tokens(self) -> int:
        return sum(map(self.size, self.texts.values()))

    def use(self, key: bytes) -> list[list[int]]:
        if key not in self.texts:
            return []
        texts = self.texts[key] = self.texts.pop(key)
        return texts

    def add(self, key: bytes, tokens: list[int]) -> None:
        tokens = tokens[: self.max_key_tokens - 2]
        if len(tokens) < 3:
            return
        texts = [*self.use(key), tokens]
        if self.size(texts) > self.max_key_tokens:
            while len(texts) > 1 and self.size(texts) > self.max_key_tokens // 2:
                del texts[0]
        self.texts[key] = texts
        while self.num_tokens > self.max_tokens or len(self.texts) > self.max_keys:
            del self.texts[next(iter(self.texts))]


@given(st.lists(answers, min_size=1, max_size=8), st.data(), limits)
def test_a_draft_is_the_one_that_a_search_finds(texts: list[list[int]], data: st.DataObject, limit: int):
    """The most frequent continuation of the longest matches, inside one answer, while half of them agree."""
    start = data.draw(st.sampled_from(texts))
    last = start[: data.draw(st.integers(0, len(start)))] + data.draw(st.lists(st.integers(0, 1), max_size=3))
    store = stored(*texts)
    if len(last) < 2:
        assert store.draft(b"a", last, limit) == NO_DRAFT
        return
    kept = [text for text in texts if len(text) > 2]
    assume(not has_collisions(kept, last))
    assert store.draft(b"a", last, limit) == search(kept, last, limit)


@given(
    st.lists(st.tuples(keys, answers, st.integers(0, 40)), max_size=60),
    st.integers(1, 200),
    st.integers(5, 120),
    st.integers(1, 4),
)
def test_a_store_keeps_to_its_bounds_and_drafts_from_what_it_keeps(
    steps: list[tuple[bytes, list[int], int]], max_tokens: int, max_key_tokens: int, max_keys: int
):
    """The least recently used keys and the oldest answers go first, and no chain leads to a dropped one."""
    store = RecentAnswers(max_tokens, max_key_tokens, max_keys)
    model = Model(max_tokens, max_key_tokens, max_keys)
    for key, text, portion in steps:
        store.add(key, text)
        model.add(key, text)
        assert store.index(portion) <= portion
        sizes = {key: len(text.tokens) for key, text in store._texts.items()}
        assert sizes == {key: Model.size(texts) for key, texts in model.texts.items()}
        assert sum(sizes.values()) == store._num_tokens <= max_tokens and len(sizes) <= max_keys
        assert max(sizes.values(), default=0) <= max_key_tokens and store._waiting.keys() <= sizes.keys()
        if portion % 2:
            store.draft(key, [0, 1], 1)
            model.use(key)
    store.index(ALL)
    for key in [b"d", b"a", b"b", b"c"]:
        for _, text, _ in steps:
            last = text[: len(text) // 2 + 2]
            texts = model.texts.get(key, [])
            if len(last) > 1 and not has_collisions(texts, last):
                assert store.draft(key, last, 5) == search(texts, last, 5)


@given(st.lists(answers, max_size=6), st.lists(st.integers(0, 50), max_size=20), limits)
def test_the_portions_of_the_index_change_no_draft(texts: list[list[int]], portions: list[int], limit: int):
    """Each portion is used in full while any token is left."""
    store, missing = RecentAnswers(), sum(len(text) + 1 for text in texts if len(text) > 2)
    for text in texts:
        store.add(b"a", text)
    for portion in portions:
        assert store.index(portion) == min(portion, missing)
        missing -= min(portion, missing)
    assert store.index(ALL) == missing
    whole = stored(*texts)
    for text in texts:
        assert store.draft(b"a", text[:-1], limit) == whole.draft(b"a", text[:-1], limit)


def test_an_answer_drafts_when_it_is_indexed():
    """Adding a long answer takes no step's time for its pairs."""
    store = RecentAnswers()
    store.add(b"a", [1, 2, 3, 4])
    assert store.draft(b"a", [1, 2], 2) == NO_DRAFT
    assert store.index(ALL) == 5 and store.index(ALL) == 0
    assert store.draft(b"a", [1, 2], 2) == draft_of((3, 4), 2)


@pytest.mark.parametrize("other", [b"b", b"d", b""])
def test_an_answer_drafts_for_its_own_key_alone(other: bytes):
    """Accepted drafts would reveal its text to other tenants."""
    store = stored([1, 2, 3, 4])
    store.add(other, [1, 2, 7, 8])
    store.index(ALL)
    assert store.draft(b"a", [1, 2], 2).tokens == (3, 4) and store.draft(other, [1, 2], 2).tokens == (7, 8)


def test_a_draft_ends_with_its_answer():
    """Neither the tokens after it nor a match lead into another answer."""
    store = stored([5, 1, 2, 3], [4, 6, 7], [2, 3, 9])
    assert store.draft(b"a", [5, 1, 2], 6) == draft_of((3,), 3)
    assert store.draft(b"a", [1, 2, 3], 6) == NO_DRAFT, "most of the longest matches are at the end of an answer"
    assert store.draft(b"a", [3, 4, 6], 6) == draft_of((7,), 2)
    assert store.draft(b"a", [6, 7], 6) == store.draft(b"a", [3, 4], 6) == NO_DRAFT


def test_most_answers_win_and_of_equally_many_the_latest():
    """At each token, among those that agree with the draft before it."""
    assert stored([1, 2, 3, 3], [1, 2, 3, 4], [1, 2, 9, 4]).draft(b"a", [1, 2], 1).tokens == (3,)
    assert stored([1, 2, 3, 3], [1, 2, 5, 6]).draft(b"a", [1, 2], 2).tokens == (5, 6)


def test_a_draft_stops_where_less_than_half_of_the_answers_agree():
    """Half of all that matched, not of those that agree with the draft so far."""
    texts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 7, 7], [1, 2, 8, 8, 8]]
    assert stored(*texts).draft(b"a", [1, 2], 3).tokens == (3, 4)
    assert stored([1, 2, 3], [1, 2, 4], [1, 2, 5]).draft(b"a", [1, 2], 3) == NO_DRAFT


def test_only_nearly_the_longest_matches_have_a_vote():
    """Three quarters of the longest."""
    texts = [[1, 2, 3, 4, 5], [9, 2, 3, 4, 6], [9, 2, 3, 4, 6], [9, 9, 3, 4, 7], [9, 9, 3, 4, 7], [9, 9, 3, 4, 7]]
    assert stored(*texts).draft(b"a", [1, 2, 3, 4], 1) == draft_of((6,), 4)


@pytest.mark.parametrize(
    ("between", "draft"), [(MAX_CANDIDATES - 1, draft_of((7,), 3)), (MAX_CANDIDATES, draft_of((9,), 2))]
)
def test_the_latest_places_are_compared(between: int, draft: Draft):
    """16 of them, so that the time of a draft is bounded in any text."""
    store = stored([1, 2, 3, 7], *[[2, 3, 9]] * between)
    assert store.draft(b"a", [1, 2, 3], 1) == draft


def test_another_pair_with_the_same_hash_gives_no_draft():
    """Nor if its second token is the last one."""
    before = 3 + (1 << (1 + ROOM).bit_length())
    text = [before, 5, 7]
    assert has_collisions([text], [3, 5]) and stored(text).draft(b"a", [3, 5], 1) == NO_DRAFT


def test_the_beginning_of_an_answer_longer_than_its_bound_is_kept():
    """It takes the whole room of its key."""
    store = RecentAnswers(100, 10, 4)
    store.add(b"a", [7, 8, 9])
    store.add(b"a", list(range(20)))
    store.index(ALL)
    assert store.draft(b"a", [5, 6], 9) == draft_of((7,), 2)
    assert store.draft(b"a", [7, 8], 9) == store.draft(b"a", [8, 9], 9) == NO_DRAFT


def test_a_full_key_keeps_the_latest_answers_in_half_of_its_room():
    """An answer of three tokens takes four, and each key one more."""
    store = RecentAnswers(max_key_tokens=41)
    for number in range(11):
        store.add(b"a", [number, 50, 60])
    store.index(ALL)
    kept = [number for number in range(11) if store.draft(b"a", [number, 50], 1).tokens]
    assert kept == [7, 8, 9, 10]


def test_a_match_of_more_than_16_tokens_counts_as_16():
    """The time of a draft is bounded in any text."""
    same = list(range(10, 10 + MAX_MATCH + 1))
    assert stored([*same, 1], [*same, 1], [9, *same[1:], 2]).draft(b"a", same, 1) == draft_of((1,), MAX_MATCH)


def test_a_key_that_drafts_is_kept_longer():
    """Drafting is a use, as adding is."""
    store = RecentAnswers(max_keys=2)
    for key in (b"a", b"b"):
        store.add(key, [1, 2, 3])
    store.index(ALL)
    store.draft(b"a", [1, 2], 1)
    store.add(b"c", [1, 2, 3])
    store.index(ALL)
    assert [store.draft(key, [1, 2], 1).match for key in (b"a", b"b", b"c")] == [2, 0, 2]


@pytest.mark.parametrize("length", [30, 1000, 20_000])
def test_a_store_takes_at_most_17_bytes_a_token_and_9_kb_a_key(length: int):
    """And its chains have the pairs of one hash only, as far as tables can be that long."""
    rng, store = random.Random(1), RecentAnswers()
    for number in range(200_000 // length):
        store.add(str(number % 5), [rng.randrange(100_000) for _ in range(length)])
        store.index(rng.randrange(2 * length))
        for text in store._texts.values():
            pairs = text.pairs
            arrays = (text.tokens, pairs._earlier, pairs._latest)
            assert sum(map(sys.getsizeof, arrays)) <= 17 * len(text.tokens) + 9 * 1024
            assert len(text.tokens) <= pairs.room
