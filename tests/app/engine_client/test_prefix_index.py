"""Which member has the longest beginning of a prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine_client.prefix_index import MAX_MARKS, PrefixIndex
from engine.prefixes import MARK_PAGES, PrefixChanges, marks_of
from engine.types import Request, SamplingParams

PAGE = 2
MARK = PAGE * MARK_PAGES  # tokens


def request(prompt: list[int], salt: str = "") -> Request:
    return Request(id="r", prompt=tuple(prompt), sampling=SamplingParams(max_tokens=9), cache_salt=salt)


def keys(prompt: list[int], salt: str = "") -> bytes:
    return b"".join(marks_of(prompt, salt, PAGE, MAX_MARKS))


@given(st.lists(st.integers(0, 100), max_size=3), st.integers(0, 100))
def test_each_member_has_as_much_as_it_reported(lengths, asked):
    """Members without any are not named."""
    index, prompt = PrefixIndex(), list(range(100))
    for member, length in enumerate(lengths):
        index.update(member, PrefixChanges(keys(prompt[:length]), b"", True), PAGE)
    expected = {member: min(length, asked) // MARK * MARK for member, length in enumerate(lengths)}
    assert index.cached_tokens(request(prompt[:asked])) == {member: most for member, most in expected.items() if most}


def test_marks_that_are_lost_or_of_a_lost_engine_are_forgotten():
    """The end of a prefix goes first."""
    index, prompt = PrefixIndex(), list(range(2 * MARK))
    index.update(1, PrefixChanges(keys(prompt), b"", True), PAGE)
    assert index.cached_tokens(request(prompt)) == {1: 2 * MARK}
    index.update(1, PrefixChanges(b"", keys(prompt)[8:]), PAGE)
    assert index.cached_tokens(request(prompt)) == {1: MARK}
    index.update(1, PrefixChanges(b"", b"", True), PAGE)
    assert index.cached_tokens(request(prompt)) == {}
    index.update(1, PrefixChanges(keys(prompt), b""), PAGE)
    index.forget(1)
    assert index.cached_tokens(request(prompt)) == {}


def test_another_owner_has_no_cached_prompt():
    """Its prompts have another salt."""
    index, prompt = PrefixIndex(), list(range(MARK))
    index.update(0, PrefixChanges(keys(prompt, "a"), b"", True), PAGE)
    assert index.cached_tokens(request(prompt, "a")) == {0: MARK}
    assert index.cached_tokens(request(prompt, "b")) == {}
