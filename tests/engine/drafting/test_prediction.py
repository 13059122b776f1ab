"""Place of an answer in its prediction, against a search of the whole prediction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafting.lookup import HASH, LONG_MATCH, NO_DRAFT, Draft
from engine.drafting.note import PREDICTION
from engine.drafting.prediction import MAX_CANDIDATES, MIN_FOLLOWED, SURE_MATCH, Prediction

ALL = 1 << 20
PROMPT = [7, 1, 2, 3]
texts = st.lists(st.integers(0, 3), max_size=120) | st.lists(st.integers(0, 200_000), max_size=40)
limits = st.integers(1, 9)


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Return a prediction and an answer with some of its parts deleted, replaced and repeated."""
    parts = draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=12))
    answer: list[int] = []
    for part in parts:
        answer += draw(st.sampled_from([part, part, part, [], part * 2, [*part, 5, 6], draw(st.sampled_from(parts))]))
    begin = list(range(20, 20 + draw(st.sampled_from([0, SURE_MATCH]))))
    return [*begin, *[token for part in parts for token in part] * draw(st.sampled_from([1, 8]))], [*begin, *answer]


def drafted(predicted: list[int], answer: list[int], limit: int) -> Draft:
    prediction = Prediction(predicted, [*PROMPT, *answer], len(PROMPT))
    prediction.read(ALL)
    return prediction.draft(limit)


def bucket(predicted: list[int], pair: list[int]) -> int:
    """Return the chain of a pair of tokens."""
    return (pair[0] * HASH[0] ^ pair[-1] * HASH[1]) & ((1 << len(predicted).bit_length()) - 1)


def search(predicted: list[int], answer: list[int], limit: int) -> Draft:
    """Return the draft of a prediction that is searched from the last sure place on after each difference."""
    place: int | None = 0
    match, searched_from = LONG_MATCH, 0
    for at, token in enumerate(answer):
        if place is not None and predicted[place : place + 1] == [token]:
            place, match = place + 1, match + 1
            continue
        if place is not None and match >= SURE_MATCH:
            searched_from = place
        last, place = answer[: at + 1], None
        chain = bucket(predicted, last[-2:])
        places = range(max(1, searched_from), len(predicted))
        nearest = [p for p in places if bucket(predicted, predicted[p - 1 : p + 1]) == chain][:MAX_CANDIDATES]
        for match in (3, 2):
            found = [p for p in nearest if predicted[max(0, p - match + 1) : p + 1] == last[-match:]]
            if len(last) >= match and found:
                place = found[0] + 1
                break
    tokens = () if place is None else tuple(predicted[place : place + limit])
    return Draft(tokens, match, PREDICTION) if tokens else NO_DRAFT


@given(edits() | st.tuples(texts, texts), limits)
def test_a_draft_is_the_one_that_a_search_finds(texts: tuple[list[int], list[int]], limit: int):
    """After any insertions, deletions and replacements: the nearest of the places after the last sure difference."""
    predicted, answer = texts
    assert drafted(predicted, answer, limit) == search(predicted, answer, limit)


@given(edits() | st.tuples(texts, texts), limits)
def test_a_draft_stands_in_the_prediction(texts: tuple[list[int], list[int]], limit: int):
    """With collisions of hashes too: after the last tokens of the answer, and never beyond the end."""
    predicted, answer = texts
    draft = drafted(predicted, answer, limit)
    last = answer[-2:]
    places = range(len(last) if draft.match < LONG_MATCH else 0, len(predicted))
    assert draft == NO_DRAFT or any(
        tuple(predicted[place : place + limit]) == draft.tokens
        and (draft.match >= LONG_MATCH or predicted[place - 2 : place] == last)
        for place in places
    )


@given(texts, limits)
def test_an_answer_that_equals_the_prediction_is_drafted_from_its_first_token(predicted: list[int], limit: int):
    """Each draft is a long match with the tokens that follow, until the prediction ends."""
    tokens = list(PROMPT)
    prediction = Prediction(predicted, tokens, len(tokens))
    for at in range(len(predicted)):
        draft = prediction.draft(limit)
        assert draft.tokens == tuple(predicted[at : at + limit]) and draft.match >= LONG_MATCH
        tokens.append(predicted[at])
        prediction.read(0)
    assert prediction.draft(limit) == NO_DRAFT


@pytest.mark.parametrize("deleted", [0, 1, 5])
@pytest.mark.parametrize("inserted", [0, 1, 5])
def test_the_place_is_found_by_two_tokens_after_a_difference(deleted: int, inserted: int):
    """A line may be inserted, deleted or replaced; the match is long again after two more tokens."""
    if not deleted and not inserted:
        return
    predicted = list(range(100, 200))
    answer = [*predicted[:40], *range(500, 500 + inserted), *predicted[40 + deleted :]]
    begins = 40 + inserted
    assert drafted(predicted, answer[: begins + 1], 3) == NO_DRAFT
    for more in (2, 3, 4, 20):
        at = 40 + deleted + more
        assert drafted(predicted, answer[: begins + more], 3) == Draft((*predicted[at : at + 3],), more, PREDICTION)


def test_a_line_that_is_inserted_after_the_end_of_another_costs_one_token():
    """The end of the inserted line, and the first token of the next one, stand around the difference."""
    predicted = [*range(100, 140), 7, *range(140, 180)]
    answer = [*range(100, 140), 7, 500, 501, 7, 140]
    assert drafted(predicted, answer, 2) == Draft((141, 142), 2, PREDICTION)


def test_a_place_that_was_right_for_few_tokens_is_given_up_for_an_earlier_one():
    """An inserted line that begins like one far ahead does not lose the lines between."""
    between = list(range(300, 400))
    predicted = [*range(100, 140), *between, 1, 2, 3, 4, 5]
    answer = [*range(100, 140), 1, 2, 3, 9, *between[:2]]
    assert drafted(predicted, answer[:43], 2).tokens == (4, 5)
    assert drafted(predicted, answer, 2).tokens == (302, 303)


def test_the_nearest_place_after_the_difference_is_taken():
    """Not one before it, which the answer has passed; three equal tokens count more than two."""
    line = [1, 2, 3]
    predicted = [*range(100, 140), *line, 50, *range(140, 180), *line, 51, 8, 2, 3, 52, *line, 53]
    assert drafted(predicted, [*range(100, 140), *line, 50, *range(140, 180), 9, 2, 3], 1).tokens == (51,)
    assert drafted(predicted, [*range(100, 140), 8, 2, 3], 1).tokens == (52,)


@given(edits(), st.integers(1, 30))
def test_a_prediction_that_is_indexed_in_portions_gives_the_same_draft(texts: tuple[list[int], list[int]], limit: int):
    """No call reads much more than its limit, and all together read each pair and token once."""
    predicted, answer = texts
    prediction = Prediction(predicted, [*PROMPT, *answer], len(PROMPT))
    read = 0
    while more := prediction.read(limit):
        assert more <= limit + MIN_FOLLOWED
        read += more
    assert read == len(predicted) - 1 + len(answer)
    assert prediction.draft(5) == drafted(predicted, answer, 5)


def test_an_answer_that_was_not_read_has_no_draft():
    """Its last tokens may differ from the prediction."""
    tokens = list(PROMPT)
    prediction = Prediction([1] * 50, tokens, len(tokens))
    tokens += [1] * (MIN_FOLLOWED + 1)
    prediction.read(0)
    assert prediction.draft(1) == NO_DRAFT
    prediction.read(0)
    assert prediction.draft(1).tokens == (1,)
