"""Requests that clients pause and move to other classes, as an engine's connections see them."""

from __future__ import annotations

from engine.ipc import Change
from engine.types import ServiceClass, StatusEvent, WaitReason
from tests.engine.api_ends import ApiEnd, TurnedWorker, request
from tests.engine.test_owners import adopt, computed, lose, tokens_of, worker  # noqa: F401
from tests.fakes import text_alone


def change(end: ApiEnd, *, is_paused: bool, service_class: ServiceClass = ServiceClass.STANDARD) -> None:
    end.send(Change("r", is_paused, service_class))


def test_a_request_is_changed_by_its_owner_alone(worker: TurnedWorker):  # noqa: F811
    """An engine with paused requests only computes nothing and gives signs of life; a late change does nothing."""
    owner, other = worker.connect("a"), worker.connect("b")
    owner.submit(request("r", 30))
    worker.turn_until(lambda: len(owner.tokens("r")) >= 5)
    change(other, is_paused=True)
    change(owner, is_paused=True, service_class=ServiceClass.BATCH)
    worker.turn()
    owner.read()
    paused_at, before = computed(worker), len(owner.messages)
    worker.turn(8)
    assert computed(worker) == paused_at < 30 and len(owner.read()) and len(owner.messages) > before
    assert worker.engine.load().suspended == (0, 0, 1)
    change(owner, is_paused=False)
    worker.turn_until(lambda: owner.end("r"))
    assert owner.tokens("r") == text_alone([1, 2], 0, 30)
    change(owner, is_paused=True)
    worker.turn()
    assert not worker.engine.has_work


def test_a_paused_orphan_is_adopted_as_it_is(worker: TurnedWorker):  # noqa: F811
    first, second = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 30, note=b"note"))
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    change(first, is_paused=True, service_class=ServiceClass.BATCH)
    worker.turn()
    lose(worker, first)
    adopted = adopt(worker, second, "r")
    assert (adopted.request.is_paused, adopted.request.service_class) == (True, ServiceClass.BATCH)
    worker.turn()
    assert [event.cause for event in second.events if isinstance(event, StatusEvent)] == [WaitReason.CLIENT]
    change(second, is_paused=False)
    worker.turn_until(lambda: second.end("r"))
    assert [*tokens_of(adopted), *second.tokens("r")] == text_alone([1, 2], 0, 30)


def test_an_orphan_takes_the_state_that_its_client_chose_while_it_was_lost(worker: TurnedWorker):  # noqa: F811
    first, _ = worker.connect("a"), worker.connect("b")
    first.submit(request("r", 100))
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    received = tuple(first.tokens("r"))
    lose(worker, first)
    again = worker.connect("a")
    again.submit(request("r", 100, output_so_far={0: received}, is_paused=True, service_class=ServiceClass.BATCH))
    worker.turn(3)
    assert worker.engine.load().suspended == (0, 0, 1)
    change(again, is_paused=False)
    worker.turn_until(lambda: again.end("r"))
    assert [*received, *again.tokens("r")] == text_alone([1, 2], 0, 100)
