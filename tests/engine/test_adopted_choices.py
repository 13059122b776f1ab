"""Adoption of requests of several choices and of those with log-probabilities, whose order is that of before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from engine import owners
from engine.ipc import Abort, Adopted
from engine.sent_events import SentEvents
from engine.types import EndEvent, FinishReason, SamplingParams, TokenEvent
from tests.engine.api_ends import ApiEnd, TurnedWorker, request
from tests.engine.test_owners import adopt, computed, lose, not_found
from tests.fakes import text_alone


@pytest.fixture
def worker() -> Iterator[TurnedWorker]:
    turned = TurnedWorker()
    yield turned
    turned.close()


def choices_of(end: ApiEnd, name: str = "r") -> list[TokenEvent | EndEvent]:
    """Return the tokens and ends of a request in the order in which they have arrived."""
    return [e for e in end.events if e.request_id == name and isinstance(e, TokenEvent | EndEvent)]


def adopted_choices(adopted: Adopted) -> list[TokenEvent | EndEvent]:
    """Return the tokens and ends that come with an adopted request."""
    return list(SentEvents(adopted.request.sent).events("r"))


@pytest.mark.parametrize("received", [4, 40, 1000])
def test_choices_are_adopted_in_the_order_in_which_they_were_sent(worker: TurnedWorker, received: int):
    """Some of them, or all, may have ended before, and several processes may adopt the request one after another."""
    ends = [worker.connect("a"), worker.connect("b"), worker.connect("c")]
    ends[0].submit(request("other", 60), request("r", 30, n=3, note=b"n"))
    worker.turn_until(lambda: len(choices_of(ends[0])) >= min(received, 20))
    ends[0].send(Abort("r", 1))
    worker.turn_until(lambda: len(choices_of(ends[0])) >= received or not worker.engine.has_work)
    before = choices_of(ends[0])
    lose(worker, ends[0])
    worker.turn(3)
    for end in ends[1:]:
        known = adopted_choices(adopt(worker, end, "r"))
        worker.turn(2)
        assert [*known, *choices_of(end)][: len(before)] == before
        before = [*known, *choices_of(end)]
        lose(worker, end)
    last = worker.connect("d")
    known = adopted_choices(adopt(worker, last, "r"))
    worker.turn_until(lambda: not worker.engine.has_work)
    worker.turn()
    everything = [*known, *choices_of(last)]
    assert everything[: len(before)] == before
    for choice in (0, 2):
        tokens = [e.token_id for e in everything if isinstance(e, TokenEvent) and e.choice == choice]
        assert tokens == text_alone([1, 2], choice, 30)
    assert [e.finish for e in everything if e.choice == 1 and e.finish] == [FinishReason.ABORT]
    assert computed(worker) <= 60 + 3 * 30, "no token is computed twice"


def test_choices_that_came_back_to_their_process_are_adopted_in_the_order_that_it_got(worker: TurnedWorker):
    """Its connection was lost with some tokens on their way, and is lost once more."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 30, n=2, note=b"n"))
    worker.turn_until(lambda: len(choices_of(first)) >= 15)
    got = choices_of(first)[:11]
    lose(worker, first)
    worker.turn(3)
    sent = SentEvents()
    for event in got:
        sent.append(event)
    again = worker.connect("a")
    output = {choice: sent.output(choice) for choice in (0, 1)}
    again.submit(request("r", 30, n=2, note=b"n", output_so_far=output, sent=sent.freeze()))
    worker.turn(4)
    before = [*got, *choices_of(again)]
    assert len(before) > 20
    lose(worker, again)
    assert adopted_choices(adopt(worker, adopter, "r"))[: len(before)] == before


@pytest.fixture
def exact(worker: TurnedWorker) -> TurnedWorker:
    """Return a worker whose engine gives the same tokens in any batch."""
    worker.engine.info = replace(worker.engine.info, is_exact=True)
    return worker


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("received", [8, 1000])
def test_log_probabilities_are_computed_again_for_the_adopter(exact: TurnedWorker, n: int, received: int):
    """All events come once more, in the order of before, whether the request had ended or not; again for another
    process that adopts it meanwhile. Others cannot take it.
    """
    first, second, third = exact.connect("a"), exact.connect("b"), exact.connect("c")
    sampling = SamplingParams(max_tokens=20, logprobs=1)
    first.submit(request("other", 60), request("r", n=n, sampling=sampling, note=b"n"))
    exact.turn_until(lambda: len(choices_of(first)) >= received or not exact.engine.has_work)
    before = choices_of(first)
    lose(exact, first)
    second.submit(*(request(f"s{number}", 9) for number in range(3)))  # so that choices take other turns
    adopted = adopt(exact, second, "r")
    assert not adopted.request.output_so_far
    exact.turn(2)
    assert not_found(exact, third, "r").is_held
    got = choices_of(second)
    assert got[: len(before)] == before[: len(got)]
    lose(exact, second)
    adopt(exact, third, "r")
    exact.turn_until(lambda: not exact.engine.has_work)
    exact.turn()
    everything = choices_of(third)
    assert everything[: len(before)] == before
    for choice in range(n):
        tokens = [e.token_id for e in everything if isinstance(e, TokenEvent) and e.choice == choice]
        assert tokens == text_alone([1, 2], choice, 20)


@pytest.mark.parametrize("n", [1, 2])
def test_a_request_that_was_stopped_is_not_computed_beyond_its_end(exact: TurnedWorker, n: int):
    """Its adopter gets the same tokens and the same end, and the engine goes on with nothing."""
    first, adopter = exact.connect("a"), exact.connect("b")
    first.submit(request("r", n=n, sampling=SamplingParams(max_tokens=4000, logprobs=1), note=b"n"))
    exact.turn_until(lambda: len(choices_of(first)) >= 9)
    first.send(Abort("r"))
    exact.turn_until(lambda: len([e for e in choices_of(first) if e.finish]) == n)
    before = choices_of(first)
    lose(exact, first)
    adopt(exact, adopter, "r")
    exact.turn_until(lambda: not exact.engine.has_work)
    assert choices_of(adopter) == before


def test_events_that_wait_for_their_turn_take_a_bounded_memory(worker: TurnedWorker, monkeypatch: pytest.MonkeyPatch):
    """Beyond it the largest request ends with an error, and others go on."""
    monkeypatch.setattr(owners, "MAX_HELD_BYTES", 10_000)
    end = worker.connect("a")
    sampling = SamplingParams(max_tokens=100, logprobs=9)
    for name, tokens in (("hostile", 90), ("small", 5)):  # the second choice waited for the first one
        sent = SentEvents.of({choice: text_alone([1, 2], choice, tokens) for choice in (0, 1)})
        end.submit(request(name, n=2, sampling=sampling, note=b"n", sent=sent.freeze()))
    worker.turn_until(lambda: len(end.tokens("small", 1)) == 100)
    worker.turn()
    assert {e.code for e in choices_of(end, "hostile") if isinstance(e, EndEvent)} == {"not_continued"}
    assert [end.tokens("small", choice) for choice in (0, 1)] == [text_alone([1, 2], choice, 100) for choice in (0, 1)]


def test_choices_of_an_orphan_continue_one_by_one(worker: TurnedWorker):
    """One that the new owner has ended meanwhile ends in the engine too."""
    first, _ = worker.connect("a"), worker.connect("other")
    first.submit(request("r", 60, n=3))
    worker.turn_until(lambda: len(first.tokens("r", 2)) >= 5)
    output = {choice: tuple(first.tokens("r", choice)[:3]) for choice in (0, 2)}
    lose(worker, first)
    again = worker.connect("a")
    again.submit(request("r", 60, n=3, output_so_far=output))
    worker.turn_until(lambda: not worker.engine.has_work)
    worker.turn_until(lambda: True)
    for choice in (0, 2):
        assert [*output[choice], *again.tokens("r", choice)] == text_alone([1, 2], choice, 60)
    assert again.tokens("r", 1) == []
