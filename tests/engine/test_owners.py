"""Requests whose connection is lost: they go on for a grace, and continue where they are for a new owner."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import owners
from engine.ended_requests import EndedRequests
from engine.ipc import Abort, Adopt, Adopted, Forget, NotFound, ReleaseOrphans
from engine.orphans import Orphan, request_bytes
from engine.sent_events import SentEvents
from engine.types import (
    EndEvent,
    Event,
    FinishReason,
    Phase,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
)
from tests.engine.api_ends import ApiEnd, TurnedWorker, request
from tests.fakes import text_alone

GRACE = 30.0


@pytest.fixture
def worker() -> Iterator[TurnedWorker]:
    turned = TurnedWorker(orphan_grace=GRACE)
    yield turned
    turned.close()


def computed(worker: TurnedWorker) -> int:
    """Return the tokens that the engine has generated."""
    return worker.engine.load().counters.generated_tokens


def lose(worker: TurnedWorker, end: ApiEnd) -> None:
    """Close a connection, and let the engine notice."""
    end.socket.close()
    worker.turn()


def adopt(worker: TurnedWorker, end: ApiEnd, name: str, salt: str = "") -> Adopted:
    """Adopt a request, and return the engine's answer."""
    answer = answer_to_adoption(worker, end, name, salt)
    assert isinstance(answer, Adopted)
    return answer


def tokens_of(adopted: Adopted) -> tuple[int, ...]:
    """Return the tokens that come with an adopted request, except for those that ended a choice."""
    assert adopted.request.sent is not None
    return adopted.request.sent.tokens


def not_found(worker: TurnedWorker, end: ApiEnd, name: str, salt: str = "") -> NotFound:
    """Ask for a request that cannot be adopted, and return the engine's answer."""
    answer = answer_to_adoption(worker, end, name, salt)
    assert isinstance(answer, NotFound)
    return answer


def answer_to_adoption(worker: TurnedWorker, end: ApiEnd, name: str, salt: str) -> Adopted | NotFound:
    end.read()
    end.send(Adopt(name, salt))
    worker.turn()
    [answer] = [message for message in end.read() if isinstance(message, Adopted | NotFound)]
    return answer


def test_an_orphan_continues_where_it_is_for_the_same_request(worker: TurnedWorker):
    """The new connection gets the tokens that it lacks, and none is computed twice."""
    first, other = worker.connect("a"), worker.connect("other")
    first.submit(request("r", 100))
    worker.turn_until(lambda: len(first.tokens("r")) >= 20)
    received = first.tokens("r")[:15]  # the last ones were lost on their way
    lose(worker, first)
    lost_at = worker.now
    worker.turn(10)
    again = worker.connect("a")
    again.submit(request("r", 100, output_so_far={0: tuple(received)}))
    worker.turn_until(lambda: again.end("r"))
    assert received + again.tokens("r") == text_alone([1, 2], 0, 100)
    assert computed(worker) == 100 and other.tokens("r") == []
    status = next(event for event in again.events if isinstance(event, StatusEvent))
    assert status.phase is Phase.DECODE and status.monotonic_time > lost_at


def test_an_orphan_that_ended_is_delivered_whole(worker: TurnedWorker):
    """With its end, as if the connection had never been lost."""
    first, other = worker.connect("a"), worker.connect("other")
    first.submit(request("r", 12))
    worker.turn_until(lambda: len(first.tokens("r")) >= 4)
    received = first.tokens("r")[:4]
    lose(worker, first)
    worker.turn_until(lambda: not worker.engine.has_work)
    again = worker.connect("a")
    again.submit(request("r", 12, output_so_far={0: tuple(received)}))
    other.submit(request("later", 2))
    worker.turn_until(lambda: other.end("later"))
    assert received + again.tokens("r") == text_alone([1, 2], 0, 12)
    assert again.end("r") == TokenEvent("r", 0, text_alone([1, 2], 0, 12)[-1], FinishReason.LENGTH)
    assert computed(worker) == 14


def test_an_output_that_the_orphan_does_not_have_is_computed_anew(worker: TurnedWorker):
    """The submitted output counts; the orphan ends."""
    first, _ = worker.connect("a"), worker.connect("other")
    first.submit(request("r", 40))
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    lose(worker, first)
    again = worker.connect("a")
    again.submit(request("r", 40, output_so_far={0: (7, 8)}))
    worker.turn_until(lambda: again.end("r"))
    assert [7, 8, *again.tokens("r")] == [7, 8, *text_alone([1, 2, 7, 8], 0, 38)]
    assert all(not isinstance(event, EndEvent) for event in again.events), "the orphan's end is not that of the request"


def test_an_orphan_with_log_probabilities_is_computed_anew(worker: TurnedWorker):
    """Those of tokens that were lost on their way are not kept."""
    sampling = SamplingParams(max_tokens=30, logprobs=0)
    first, adopter = worker.connect("a"), worker.connect("b")
    wanted = request("r").__class__(id="r", prompt=(1, 2), sampling=sampling, note=b"n")
    first.submit(wanted)
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    lose(worker, first)
    adopter.send(Adopt("r", ""))
    worker.turn()
    adopter.read()
    assert NotFound("r") in adopter.messages
    again = worker.connect("a")
    again.submit(wanted)
    worker.turn_until(lambda: again.end("r"))
    assert again.tokens("r") == text_alone([1, 2], 0, 30)


def test_another_api_process_adopts_an_orphan(worker: TurnedWorker):
    """It gets the request with its tokens so far, and the rest as events."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 50, service_class=ServiceClass.BATCH, note=b"n", cache_salt="anna"))
    worker.turn_until(lambda: len(first.tokens("r")) >= 10)
    assert not_found(worker, adopter, "r", "anna").is_held, "a request with a connection cannot be taken"
    lose(worker, first)
    adopted = adopt(worker, adopter, "r", "anna")
    worker.turn_until(lambda: adopter.end("r"))
    assert adopted.request.service_class is ServiceClass.BATCH and len(tokens_of(adopted)) >= 10
    assert [*tokens_of(adopted), *adopter.tokens("r")] == text_alone([1, 2], 0, 50)


def test_a_request_is_adopted_by_its_alias(worker: TurnedWorker):
    """As an API process that knows only the idempotency key does; the answer has the name that was asked for."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("s", 50, note=b"n"), request("r", 50, note=b"n", alias="key"))
    worker.turn(3)
    assert not_found(worker, adopter, "key").is_held
    lose(worker, first)
    adopted = adopt(worker, adopter, "key")
    assert (adopted.name, adopted.request.id) == ("key", "r")
    worker.turn_until(lambda: adopter.end("r"))
    last = worker.connect("c")
    lose(worker, adopter)
    worker.turn()
    assert adopt(worker, last, "key").request.id == "r"


@pytest.mark.parametrize("has_lost", [False, True])
def test_another_owner_learns_nothing_about_a_request(worker: TurnedWorker, has_lost: bool):
    """It gets the answer for a request that does not exist, and the orphan stays for its own owner."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 500, note=b"n", cache_salt="anna"))
    worker.turn(3)
    if has_lost:
        lose(worker, first)
    assert not_found(worker, adopter, "r", "bert") == NotFound("r") == not_found(worker, adopter, "r", "")
    if has_lost:
        assert adopt(worker, adopter, "r", "anna").request.id == "r"


def test_one_of_two_api_processes_adopts_an_orphan(worker: TurnedWorker):
    """The other one is told that it is in flight."""
    first, one, two = worker.connect("a"), worker.connect("b"), worker.connect("c")
    first.submit(request("r", 500, note=b"n"))
    worker.turn(3)
    lose(worker, first)
    for end in (one, two):
        end.send(Adopt("r", ""))
    worker.turn(3)
    answers = [message for end in (one, two) for message in end.read() if isinstance(message, Adopted | NotFound)]
    assert sorted(type(answer).__name__ for answer in answers) == ["Adopted", "NotFound"]
    assert all(answer.is_held for answer in answers if isinstance(answer, NotFound))


@pytest.mark.parametrize("ends_first", [False, True])
def test_the_end_of_a_request_can_be_adopted_within_the_grace(worker: TurnedWorker, ends_first: bool):
    """Whether it ended before the loss of its connection, with tokens that its API process may not have sent, or as an
    orphan; by another process once the first that adopts it is lost too.
    """
    first, one, two = worker.connect("a"), worker.connect("b"), worker.connect("c")
    first.submit(request("r", 12, note=b"n"))
    worker.turn_until(lambda: first.end("r") if ends_first else len(first.tokens("r")) >= 4)
    lose(worker, first)
    worker.turn_until(lambda: not worker.engine.has_work)
    for end in (one, two):
        adopted = adopt(worker, end, "r")
        worker.turn_until(lambda end=end: end.end("r"))
        assert [*tokens_of(adopted), *end.tokens("r")] == text_alone([1, 2], 0, 12)
        assert end.end("r") == TokenEvent("r", 0, text_alone([1, 2], 0, 12)[-1], FinishReason.LENGTH)
        lose(worker, end)
    worker.now += GRACE
    assert not not_found(worker, worker.connect("d"), "r").is_held


@pytest.mark.parametrize("ends_first", [False, True])
@pytest.mark.parametrize("name", ["r", "key"])
def test_an_ended_request_that_was_adopted_is_held_for_the_grace(worker: TurnedWorker, name: str, ends_first: bool):
    """So that the process that had it, started again, leaves it to the adopter. Others learn nothing."""
    first, one = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 12, note=b"n", alias="key", cache_salt="anna"))
    worker.turn_until(lambda: first.end("r") if ends_first else len(first.tokens("r")) >= 4)
    lose(worker, first)
    worker.turn_until(lambda: not worker.engine.has_work)
    adopt(worker, one, name, "anna")
    again = worker.connect("a again")
    worker.now += GRACE - 1
    assert not_found(worker, again, name, "anna").is_held and not not_found(worker, again, name, "bert").is_held
    worker.now += 1
    assert not not_found(worker, again, name, "anna").is_held


def test_an_ended_request_that_was_deleted_is_not_adopted(worker: TurnedWorker):
    """Nor is one by the process that had it, which knows its own streams, or by others while that one is connected."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 4, note=b"n"), request("s", 4, note=b"n"))
    worker.turn_until(lambda: first.end("r") and first.end("s"))
    assert not_found(worker, first, "s") == NotFound("s")
    assert not_found(worker, adopter, "s") == NotFound("s", is_held=True)
    first.send(Forget("r"))
    assert not_found(worker, adopter, "r") == NotFound("r")
    lose(worker, first)
    worker.turn()
    assert adopt(worker, adopter, "s").request.id == "s"


def test_an_aborted_request_is_adopted_with_its_end(worker: TurnedWorker):
    """Its API process has found a stop string, and died before it wrote the end."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 500, note=b"n"))
    worker.turn_until(lambda: len(first.tokens("r")) >= 4)
    first.send(Abort("r"))
    worker.turn_until(lambda: first.end("r"))
    tokens = first.tokens("r")
    lose(worker, first)
    adopted = adopt(worker, adopter, "r")
    worker.turn()
    assert list(tokens_of(adopted)) == tokens
    assert adopter.end("r") == EndEvent("r", 0, FinishReason.ABORT)


def test_a_request_without_a_note_is_not_adopted(worker: TurnedWorker):
    """No other process could make its stream."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 500))
    worker.turn(3)
    lose(worker, first)
    assert not_found(worker, adopter, "r") == NotFound("r")


def test_a_request_whose_grammar_was_compiled_is_adopted_after_its_end(worker: TurnedWorker):
    """It is not in the engine when it is submitted."""
    first, adopter = worker.connect("a"), worker.connect("b")
    compiled: Future[None] = Future()
    worker.engine.constraints = cast(Any, SimpleNamespace(prepare=lambda request: compiled))
    first.submit(request("r", 3, note=b"n"))
    worker.turn(3)
    compiled.set_result(None)
    worker.engine.constraints = None  # of a fake model
    worker.turn_until(lambda: first.end("r"))
    lose(worker, first)
    assert len(tokens_of(adopt(worker, adopter, "r"))) == 2


def test_ended_requests_take_a_bounded_memory():
    """The oldest are forgotten, and those whose time is over."""
    sent = SentEvents.of({0: (1, 2)})
    one = request_bytes(request("r", note=bytes(1000))) + sent.bytes
    kept = EndedRequests(max_bytes=3 * one)
    for number in range(5):
        kept.add(Orphan(request(f"r{number}", note=bytes(1000)), (0,), sent, "", 10.0 + number))
    assert [kept.find(f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    kept.expire(13.5)
    assert len(kept) == 1 and kept.bytes == one


def test_an_api_process_that_connects_again_and_again_leaves_a_bounded_number_of_orphans(
    worker: TurnedWorker, monkeypatch: pytest.MonkeyPatch
):
    """The oldest end before their grace."""
    monkeypatch.setattr(owners, "MAX_ORPHANS", 5)
    worker.connect("other")
    for attempt in range(4):
        hostile = worker.connect("hostile")
        hostile.submit(*(request(f"r{attempt}.{number}", 1000) for number in range(3)))
        worker.turn(2)
        lose(worker, hostile)
    worker.turn()
    assert set(worker.engine.scheduler.requests) == {"r2.1", "r2.2", "r3.0", "r3.1", "r3.2"}


def test_a_drain_waits_for_the_adoption_of_orphans(worker: TurnedWorker):
    """An API process that is still connected continues them."""
    first, adopter = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 40, note=b"n"))
    worker.turn(3)
    lose(worker, first)
    adopter.send(Adopt("r", ""))
    worker.worker.drain(60.0)
    [adopted] = [message for message in adopter.read() if isinstance(message, Adopted)]
    assert [*tokens_of(adopted), *adopter.tokens("r")] == text_alone([1, 2], 0, 40)


def test_a_request_that_has_moved_is_not_adopted_from_its_former_engine(worker: TurnedWorker):
    """It goes on in another one, and its end here is none for its client."""
    first, other = worker.connect("a"), worker.connect("other")
    first.submit(request("moved", 4000, note=b"n"), request("stopped", 4000, note=b"n"))
    worker.turn_until(lambda: len(first.tokens("moved")) >= 5)
    first.send(Abort("moved", moves=True))
    first.send(Abort("stopped"))
    worker.turn_until(lambda: first.end("moved") and first.end("stopped"))
    lose(worker, first)
    assert not_found(worker, other, "moved") == NotFound("moved")
    other.send(Adopt("stopped", ""))
    worker.turn(3)
    assert any(isinstance(message, Adopted) for message in other.read())


def test_orphans_end_after_their_grace(worker: TurnedWorker):
    """They can be adopted until then, and not afterwards."""
    first, other = worker.connect("a"), worker.connect("other")
    first.submit(request("r", 4000, note=b"n"))
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    lose(worker, first)
    lost_at = worker.now
    worker.turn_until(lambda: not worker.engine.has_work)
    assert GRACE <= worker.now - lost_at < GRACE + 1
    assert not_found(worker, other, "r") == NotFound("r")


def test_an_api_process_releases_orphans_that_it_does_not_need(worker: TurnedWorker):
    """Those of other processes stay."""
    first, second, other = worker.connect("a"), worker.connect("b"), worker.connect("other")
    first.submit(request("r1", 2000), request("r2", 2000))
    second.submit(request("s", 2000))
    worker.turn(3)
    lose(worker, first)
    lose(worker, second)
    again = worker.connect("a")
    again.submit(request("r2", 2000))
    again.send(ReleaseOrphans())
    worker.turn(3)
    assert set(worker.engine.scheduler.requests) == {"r2", "s"}
    assert len(other.events) == 0


events = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=20)


@given(events, st.integers(0, 20), st.sampled_from([None, FinishReason.STOP, FinishReason.ABORT]))
def test_a_new_owner_ends_up_with_the_whole_output(tokens, received: int, finish):
    """Whatever it had received, and however a choice ended."""
    before = {0: (1, 2, 3), 1: ()}
    orphan = Orphan(request("r", n=2), tuple(before), SentEvents.of(before), "a", 0.0)
    for choice, token in tokens:
        orphan.sent.append(TokenEvent("r", choice, token))
    if finish is FinishReason.ABORT:
        orphan.sent.append(EndEvent("r", 0, finish))
    elif finish is not None:
        orphan.sent.append(TokenEvent("r", 0, 99, finish))
    whole = {c: [*before[c], *(token for choice, token in tokens if choice == c)] for c in before}
    had = {choice: tuple(mine[:received]) for choice, mine in whole.items()}
    following: list[Event] | None = orphan.events_after(had, 5.0)
    assert following is not None
    for choice, mine in whole.items():
        new = [event.token_id for event in following if isinstance(event, TokenEvent) and event.choice == choice]
        end = [99] if choice == 0 and finish is FinishReason.STOP else []
        assert [*had[choice], *new] == mine + end
    ends = [event for event in following if getattr(event, "finish", None)]
    assert len(ends) == (finish is not None)
