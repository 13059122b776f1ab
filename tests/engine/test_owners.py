"""Requests whose connection is lost: they go on for a grace, and continue where they are for a new owner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ipc import Adopt, Adopted, NotFound, ReleaseOrphans
from engine.orphans import Orphan
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
    orphan = Orphan(request("r"), {0: ()}, "a", 0.0)
    assert orphan.can_continue
    first, adopter = worker.connect("a"), worker.connect("b")
    wanted = request("r").__class__(id="r", prompt=(1, 2), sampling=sampling)
    first.submit(wanted)
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    lose(worker, first)
    adopter.send(Adopt("r"))
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
    first.submit(request("r", 50, service_class=ServiceClass.BATCH))
    worker.turn_until(lambda: len(first.tokens("r")) >= 10)
    adopter.send(Adopt("r"))
    worker.turn(2)
    adopter.read()
    assert NotFound("r") in adopter.messages, "a request with a connection cannot be taken"
    lose(worker, first)
    adopter.send(Adopt("r"))
    worker.turn_until(lambda: adopter.end("r"))
    [adopted] = [message for message in adopter.messages if isinstance(message, Adopted)]
    assert adopted.request.service_class is ServiceClass.BATCH and len(adopted.output[0]) >= 10
    assert [*adopted.output[0], *adopter.tokens("r")] == text_alone([1, 2], 0, 50)


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


def test_orphans_end_after_their_grace(worker: TurnedWorker):
    """They can be adopted until then, and not afterwards."""
    first, other = worker.connect("a"), worker.connect("other")
    first.submit(request("r", 4000))
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    lose(worker, first)
    lost_at = worker.now
    worker.turn_until(lambda: not worker.engine.has_work)
    assert GRACE <= worker.now - lost_at < GRACE + 1
    other.send(Adopt("r"))
    worker.turn()
    other.read()
    assert NotFound("r") in other.messages


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
    orphan = Orphan(request("r", n=2), before, "a", 0.0)
    orphan.events = [TokenEvent("r", choice, token) for choice, token in tokens]
    if finish is FinishReason.ABORT:
        orphan.events.append(EndEvent("r", 0, finish))
    elif finish is not None:
        orphan.events.append(TokenEvent("r", 0, 99, finish))
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
