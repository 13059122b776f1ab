"""Which member has the longest beginning of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine_client.prefix_index import MAX_MARKS, PrefixIndex
from engine.ipc import StepResult, WatchPrefixes
from engine.prefixes import MARK_PAGES, PrefixChanges, chain_next, chain_start, marks_of
from engine.types import Request, SamplingParams
from tests.engine import api_ends

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


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 200)), min_size=1, max_size=12))
def test_an_engine_has_what_the_index_says(prompts):
    """Between steps, also when prompts that share beginnings have evicted each other."""
    index, pool = PrefixIndex(), 64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_ends, "PAGES", pool)
        worker = api_ends.TurnedWorker()
    end = worker.connect("a")
    end.send(WatchPrefixes())
    cache = worker.engine.scheduler.kv_manager.pool
    page = api_ends.CONFIG.tokens_per_page
    asked = [
        api_ends.request(f"r{number}", prompt=tuple(range(1000 * first, 1000 * first + length)))
        for number, (first, length) in enumerate(prompts)
    ]
    for each in asked:
        end.submit(each)
        while not end.end(each.id):
            worker.turn()
            for message in end.read():
                if isinstance(message, StepResult) and message.prefixes is not None:
                    index.update(0, message.prefixes, page)
            for other in asked:
                told = index.cached_tokens(other).get(0, 0)
                held = page * len(cache.lookup(digests(other.prompt, page)))
                assert held - page * MARK_PAGES < told <= held
    worker.close()


def digests(prompt: Sequence[int], page: int) -> Iterator[bytes]:
    """Yield the digests of the full pages of a prompt."""
    digest = chain_start("")
    for start in range(0, len(prompt) // page * page, page):
        yield (digest := chain_next(digest, prompt[start : start + page]))


def test_another_owner_has_no_cached_prompt():
    """Its prompts have another salt."""
    index, prompt = PrefixIndex(), list(range(MARK))
    index.update(0, PrefixChanges(keys(prompt, "a"), b"", True), PAGE)
    assert index.cached_tokens(request(prompt, "a")) == {0: MARK}
    assert index.cached_tokens(request(prompt, "b")) == {}
