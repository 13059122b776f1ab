"""Marks of prompts and of prefix caches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.ipc import StepResult, WatchPrefixes
from engine.prefixes import KEY_BYTES, MARK_PAGES, CachedMarks, PrefixChanges, marks_of
from tests.engine.api_ends import CONFIG, TurnedWorker, request

PAGE = CONFIG.tokens_per_page


def reports(messages) -> list[PrefixChanges]:
    return [message.prefixes for message in messages if isinstance(message, StepResult) and message.prefixes]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=100), min_size=1, max_size=3))
def test_an_engine_reports_the_marks_of_the_prompts_that_it_has_computed(prompts):
    """The API process finds them by the prompt alone."""
    worker = TurnedWorker()
    end = worker.connect("a")
    end.send(WatchPrefixes())
    for number, prompt in enumerate(prompts):
        end.submit(request(f"r{number}", prompt=tuple(prompt), cache_salt="s"))
    worker.turn_until(lambda: all(end.end(f"r{number}") for number in range(len(prompts))))
    gained = b"".join(report.gained for report in reports(end.messages))
    keys = {gained[start : start + KEY_BYTES] for start in range(0, len(gained), KEY_BYTES)}
    for prompt in prompts:
        marks = marks_of(prompt, "s", PAGE, limit=100)
        assert len(marks) == len(prompt) // (PAGE * MARK_PAGES)
        assert keys.issuperset(marks)
        assert not marks or keys.isdisjoint(marks_of(prompt, "other", PAGE, limit=100))
    worker.close()


def test_an_api_process_that_asks_later_gets_all_marks_and_others_get_none():
    """Changes follow, to each of those that have asked."""
    worker = TurnedWorker()
    first, second, third = worker.connect("a"), worker.connect("b"), worker.connect("c")
    first.send(WatchPrefixes())
    first.submit(request("one", prompt=tuple(range(40))))
    worker.turn_until(lambda: first.end("one"))
    second.send(WatchPrefixes())
    worker.turn(2)
    [whole] = reports(second.read())
    assert whole.is_whole and whole.gained == b"".join(report.gained for report in reports(first.messages))
    third.submit(request("two", prompt=tuple(range(100, 140))))
    worker.turn_until(lambda: third.end("two"))
    assert reports(second.read()) == reports(first.read())[-1:] != []
    assert reports(third.messages) == []
    worker.close()


def test_a_prompt_is_read_up_to_a_limit():
    """A longer one has the same first marks."""
    prompt = list(range(1000))
    assert marks_of(prompt, "", PAGE, limit=3) == marks_of(prompt, "", PAGE, limit=100)[:3]


def test_nothing_is_recorded_while_nobody_asks():
    """An engine whose API process does not watch spends nothing on it."""
    marks = CachedMarks()
    marks.add(b"12345678")
    assert marks.take_changes() is None
    marks.add(b"87654321")
    marks.remove(b"12345678")
    assert marks.take_changes() == PrefixChanges(b"87654321", b"12345678")
    marks.forget_changes()
    marks.remove(b"87654321")
    assert marks.take_changes() is None


def test_a_mark_is_lost_with_its_last_place():
    """A page that leaves the device for host memory or disk is still found there."""
    marks = CachedMarks()
    marks.take_changes()
    marks.add(b"12345678")
    marks.add(b"12345678")
    assert marks.take_changes() == PrefixChanges(b"12345678", b"")
    marks.remove(b"12345678")
    assert marks.take_changes() is None
    marks.remove(b"12345678")
    assert marks.take_changes() == PrefixChanges(b"", b"12345678")
