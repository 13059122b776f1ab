"""Notes about the prefix cache: what a prompt found of the earlier answer that it continues, and why not more."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from engine.cache_note import NOTHING_KNOWN, CacheMiss, CacheNote
from engine.scheduling.cache_losses import CacheLosses, Loss
from engine.scheduling.ended_answers import EndedAnswer, EndedAnswers
from engine.scheduling.sessions import HALF_LIFE_SECONDS
from engine.types import Request, SamplingParams, ServiceClass
from tests.engine.scheduling.history import PAGE_SIZE, STEP_SECONDS, History
from tests.engine.scheduling.test_sessions import Talk, finish, flood


def note_of(history: History, name: str) -> CacheNote:
    """Return the only note of a request's status events."""
    [note] = [status.cache_note for status in history.statuses[name] if status.cache_note is not None]
    return note


def second_turn(history: History, between: Callable[[History], None], *, waits: bool = False) -> CacheNote:
    """Return the note of the second turn of a conversation of 30 tokens, after something between the turns."""
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    if waits:
        talk.wait()
    between(history)
    talk.ask()
    finish(history)
    note = note_of(history, talk.name)
    assert (note.continues, note.expected_tokens) == ("r1", 32)
    history.end()
    return note


def test_the_first_request_of_an_owner_has_no_answer_to_compare_with() -> None:
    """Nor has one in an engine that has restarted; requests of other owners do not count."""
    history = History(slots=2, pages=24)
    flood(history, 1)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    assert note_of(history, talk.name) == NOTHING_KNOWN


def test_a_prompt_that_goes_on_finds_its_pages_and_their_age() -> None:
    """The note has no reason then."""

    def pause(history: History) -> None:
        history.now += 41.0

    note = second_turn(History(slots=2, pages=24), pause)
    assert note.reason is None and note.differs_at is None
    assert 41.0 <= note.kept_seconds <= 41.0 + 2 * STEP_SECONDS


@pytest.mark.parametrize("service_class", [ServiceClass.INTERACTIVE, ServiceClass.STANDARD])
def test_pages_that_a_request_needed_are_evicted_for_its_class(service_class: ServiceClass) -> None:
    """This holds for the pages of a single request."""
    history = History(slots=2, pages=24, host=0)
    note = second_turn(history, lambda history: flood(history, 12, service_class=service_class))
    assert (note.reason, note.beneficiary) == (CacheMiss.EVICTED, service_class)


def test_kept_pages_that_a_request_needed_are_evicted_for_its_class() -> None:
    """Without host memory they are lost."""
    history = History(slots=2, pages=12, host=0, session_share=1.0)
    note = second_turn(history, lambda history: flood(history, 3, tokens=44), waits=True)
    assert (note.reason, note.beneficiary) == (CacheMiss.EVICTED, ServiceClass.STANDARD)


def test_pages_in_host_memory_are_found() -> None:
    """They count as cached."""
    history = History(slots=2, pages=12, host=12, session_share=1.0)
    note = second_turn(history, lambda history: flood(history, 3, tokens=44), waits=True)
    assert note.reason is None


def test_pages_that_host_memory_lost_have_that_reason() -> None:
    """A sequence that was swapped out needed it."""

    def fill(history: History) -> None:
        flood(history, 3, tokens=44)
        host = history.scheduler.kv_manager.host
        host.release(host.allocate(host.total))

    history = History(slots=2, pages=12, host=12, session_share=1.0)
    note = second_turn(history, fill, waits=True)
    assert note.reason is CacheMiss.HOST


def test_pages_that_are_slower_to_copy_than_to_compute_have_that_reason() -> None:
    """They stay in host memory."""
    history = History(slots=2, pages=12, host=12, session_share=1.0, swap_speed=1e-9)
    note = second_turn(history, lambda history: flood(history, 3, tokens=44), waits=True)
    assert note.reason is CacheMiss.COPY


def test_pages_beyond_the_share_of_sessions_have_that_reason() -> None:
    """They were given up before a request needed them."""
    history = History(slots=2, pages=24, host=0, session_share=0.5)
    talk, *others = (Talk(history, "agent", 30, 100 + 50 * number) for number in range(4))
    for each in (talk, *others):
        each.ask(session_seconds=60.0)
        finish(history)
    flood(history, 12)
    talk.ask()
    finish(history)
    note = note_of(history, talk.name)
    assert (note.reason, note.beneficiary) == (CacheMiss.SHARE, ServiceClass.STANDARD)


def test_pages_that_were_kept_for_their_time_have_that_reason() -> None:
    """They were given up before a request needed them."""

    def wait(history: History) -> None:
        for _ in range(9):
            history.now += HALF_LIFE_SECONDS
            history.step()
        flood(history, 12)

    history = History(slots=2, pages=24, host=0)
    note = second_turn(history, wait, waits=True)
    assert (note.reason, note.beneficiary) == (CacheMiss.EXPIRED, ServiceClass.STANDARD)


def test_a_page_that_is_computed_again_has_no_earlier_loss() -> None:
    """It was given up, but then it was evicted as a page of a single request."""
    history = History(slots=2, pages=24, host=0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    talk.wait()
    for _ in range(9):
        history.now += HALF_LIFE_SECONDS
        history.step()
    prompt = talk.prompt
    notes = []
    for _ in range(2):
        flood(history, 12)
        name = history.arrive(prompt, 1, tenant="agent", cache_salt="agent")
        finish(history)
        notes.append(note_of(history, name).reason)
    assert notes == [CacheMiss.EXPIRED, CacheMiss.EVICTED]


def test_a_prompt_with_log_probabilities_is_not_looked_up() -> None:
    """Its pages are cached all the same."""
    history = History(slots=2, pages=24)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    prompt = (*talk.prompt, *history.texts[talk.name, 0])
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
    history.engine.submit(Request(id="r2", prompt=prompt, sampling=sampling, cache_salt="agent", tenant="agent"))
    events = [event for _ in range(20) for event in history.engine.step()]
    [note] = [event.cache_note for event in events if getattr(event, "cache_note", None) is not None]
    assert (note.reason, note.expected_tokens) == (CacheMiss.LOGPROBS, 32)


def ask_changed(history: History, at: int, salt: str) -> tuple[CacheNote, list[int], list[int]]:
    """Return the note of a prompt that changes one token of an earlier one, and both texts."""
    talk = Talk(history, salt, 30)
    talk.ask()
    finish(history)
    before = [*talk.prompt, *history.texts[talk.name, 0]]
    after = [*before]
    after[at] = 999
    name = history.arrive(after, 2, tenant=salt, cache_salt=salt)
    finish(history)
    return note_of(history, name), before, after


@pytest.mark.parametrize("at", [0, 1, PAGE_SIZE, 17, 29, 31])
def test_a_changed_prompt_names_the_first_token_that_differs(at: int) -> None:
    """What is common is found, so there is no other reason."""
    note, before, after = ask_changed(History(slots=2, pages=24), at, "agent")
    assert (note.continues, note.reason, note.differs_at) == ("r1", None, at)
    assert note.expected_tokens == at // PAGE_SIZE * PAGE_SIZE
    assert list(note.before) == before[max(0, at - 3) : at + 3]
    assert list(note.after) == after[max(0, at - 3) : at + 3]


def test_clients_without_keys_learn_nothing_of_each_other() -> None:
    """They share an owner: no request, no token, and no position inside of a page."""
    note, _, _ = ask_changed(History(slots=2, pages=24), 17, "")
    assert (note.continues, note.before, note.after) == ("", (), ())
    assert (note.differs_at, note.expected_tokens) == (16, 16)


def test_an_older_answer_than_the_latest_is_found_if_the_prompt_extends_it() -> None:
    """The comparison with the latest answers alone would name one of them."""
    history = History(slots=2, pages=200, host=0)
    talk = Talk(history, "agent", 30)
    talk.ask(6)
    finish(history)
    for number in range(20):
        history.arrive([600 + number] * 9, 1, tenant="agent", cache_salt="agent")
        finish(history)
    talk.ask()
    finish(history)
    assert note_of(history, talk.name).continues == "r1"


def test_of_several_answers_the_one_with_the_longest_common_prefix_is_named() -> None:
    """Later ones differ earlier."""
    history = History(slots=2, pages=100, host=0)
    talk = Talk(history, "agent", 30)
    talk.ask()
    finish(history)
    for number in range(3):
        history.arrive([*talk.prompt[:20], 700 + number], 1, tenant="agent", cache_salt="agent")
        finish(history)
    talk.ask()
    finish(history)
    assert note_of(history, talk.name).continues == "r1"


def test_losses_are_bounded() -> None:
    """The oldest is forgotten."""
    losses = CacheLosses(2)
    for digest in (b"a", b"b", b"c"):
        losses.lose(digest, Loss(CacheMiss.EVICTED))
    assert len(losses) == 2 and losses.get(b"a") is None


def test_answers_are_bounded_by_owner() -> None:
    """The owner with the most pages loses its oldest answer."""
    answers = EndedAnswers(max_pages=20)
    for name, owner in [("a1", "a"), *((f"b{number}", "b") for number in range(6))]:
        answers.add(EndedAnswer(name, owner, [name.encode()] * 3, 0.0, 0.0, array("i")))
    assert [answer.request_id for owner in "ab" for answer in answers.latest(owner, 9)] == [
        "a1",
        "b5",
        "b4",
        "b3",
        "b2",
    ]
    assert answers.get("b0") is None and answers.by_tail(b"b0") is None
