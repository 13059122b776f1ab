"""Several API processes at one engine: each gets its own events, and none holds up a step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.ipc import Abort, ChannelClosed, EchoRequest, PostUse, StepResult, UseVocabulary, WatchSnapshots
from engine.tenant_uses import TenantUse, UseReport
from engine.types import EndEvent, FinishReason, Vocabulary
from tests.engine.api_ends import ApiEnd, TurnedWorker, request
from tests.fakes import text_alone


@pytest.fixture
def worker() -> Iterator[TurnedWorker]:
    turned = TurnedWorker()
    yield turned
    turned.close()


def test_each_connection_gets_the_events_of_its_own_requests(worker: TurnedWorker):
    """In one frame for each step, with the load of the whole engine."""
    first, second = worker.connect("a"), worker.connect("b")
    first.submit(request("a1", 6), request("a2", 9))
    second.submit(request("b1", 7))
    worker.turn()
    busy = [
        message.load.running for end in (first, second) for message in end.read() if isinstance(message, StepResult)
    ]
    assert {sum(running) for running in busy} == {3}
    worker.turn_until(lambda: first.end("a2") and second.end("b1"))
    assert {event.request_id for event in first.events} == {"a1", "a2"}
    assert {event.request_id for event in second.events} == {"b1"}
    assert first.tokens("a1") == text_alone([1, 2], 0, 6) and second.tokens("b1") == text_alone([1, 2], 0, 7)
    frames = [message for message in second.messages if isinstance(message, StepResult) and message.events]
    assert max(sum(hasattr(event, "token_id") for event in frame.events) for frame in frames) == 1


def test_a_request_id_of_another_connection_is_refused(worker: TurnedWorker):
    """The first request goes on, and is not computed twice."""
    first, second = worker.connect("a"), worker.connect("b")
    first.submit(request("same", 20))
    worker.turn(3)
    second.submit(request("same", 20))
    worker.turn_until(lambda: first.end("same"))
    [refused] = [event for event in second.events if isinstance(event, EndEvent)]
    assert (refused.code, refused.param) == ("request_in_flight", "id")
    assert first.tokens("same") == text_alone([1, 2], 0, 20) and second.tokens("same") == []


def test_a_connection_aborts_only_its_own_requests(worker: TurnedWorker):
    """Request IDs of others have no effect."""
    first, second = worker.connect("a"), worker.connect("b")
    first.submit(request("mine", 10))
    worker.turn()
    second.send(Abort("mine"))
    worker.turn_until(lambda: first.end("mine"))
    assert first.tokens("mine") == text_alone([1, 2], 0, 10)
    first.submit(request("other", 1000))
    worker.turn()
    first.send(Abort("other"))
    worker.turn_until(lambda: first.end("other"))
    assert first.end("other") == EndEvent("other", 0, FinishReason.ABORT)


def test_a_connection_that_reads_nothing_is_closed_beyond_a_bound(
    worker: TurnedWorker, monkeypatch: pytest.MonkeyPatch
):
    """Steps go on for others meanwhile, and its own requests become orphans."""
    monkeypatch.setattr("engine.connection.MAX_UNREAD_BYTES", 4096)
    silent, reading = worker.connect("silent"), worker.connect("reading")
    silent.submit(request("s", 3900))
    reading.submit(request("r", 300))
    worker.turn_until(lambda: reading.end("r"))
    assert reading.tokens("r") == text_alone([1, 2], 0, 300)
    worker.turn_until(lambda: len(worker.connections.all) == 1)
    assert worker.engine.has_work, "its request goes on without it"


def test_snapshots_go_to_connections_that_watch(worker: TurnedWorker):
    """And to no other."""
    first, second = worker.connect("a"), worker.connect("b")
    first.send(WatchSnapshots(True))
    second.submit(request("r", 30))
    worker.turn_until(lambda: second.end("r"))
    first.read()
    assert any(message.snapshot for message in first.messages if isinstance(message, StepResult))
    assert not any(message.snapshot for message in second.messages if isinstance(message, StepResult))


def test_each_echo_request_brings_the_progress_count(worker: TurnedWorker):
    """However recent the last one is: the API process, which has no shared memory, waits for it."""
    end = worker.connect("a")
    worker.turn(2)
    end.read()
    counts = []
    for _ in range(3):
        worker.now -= 0.25  # no time passes
        end.send(EchoRequest())
        worker.turn()
        [count] = [message.heartbeat for message in end.read() if isinstance(message, StepResult)]
        counts.append(count)
    assert counts == sorted(set(counts))


def test_a_frame_that_cannot_be_read_ends_only_its_connection(worker: TurnedWorker):
    """The others go on."""
    bad, good = worker.connect("a"), worker.connect("b")
    good.submit(request("r", 10))
    bad.socket.sendall(b"\x03\x00\x00\x00abc")
    worker.turn_until(lambda: good.end("r"))
    bad.read()
    assert bad.is_closed and worker.connections.all[0].process == "b"


def test_without_a_listener_the_worker_ends_with_its_last_connection(worker: TurnedWorker):
    """As the process that the API process has started."""
    end = worker.connect("")
    end.submit(request("r", 1000))
    worker.turn()
    end.socket.close()
    with pytest.raises(ChannelClosed):
        worker.turn(3)


def test_the_vocabulary_of_a_second_connection_discards_no_compiled_grammar():
    """All API processes of a model send the same tokens."""
    from engine.constraints.compiler import ConstraintFactory

    factory = ConstraintFactory()
    vocabulary = Vocabulary((b"<eos>", *(bytes([byte]) for byte in range(256))), (0,), (0,))
    factory.use_vocabulary(vocabulary, 300)
    tokenizer = factory._tokenizer
    factory.use_vocabulary(UseVocabulary(vocabulary).vocabulary, 300)
    assert factory._tokenizer is tokenizer


def test_one_api_process_has_one_connection(worker: TurnedWorker):
    """A second one replaces the first, whose loss the engine may not have noticed; requests go on in the new one."""
    first = worker.connect("a")
    first.submit(request("r", 60))
    worker.turn_until(lambda: len(first.tokens("r")) >= 5)
    second = worker.connect("a")
    worker.turn()
    second.submit(request("r", 60, output_so_far={0: tuple(first.tokens("r")[:4])}))
    worker.turn_until(lambda: second.end("r"))
    first.read()
    assert first.is_closed
    assert first.tokens("r")[:4] + second.tokens("r") == text_alone([1, 2], 0, 60)


def uses_of(end: ApiEnd) -> list[tuple[str, int]]:
    """Return the processes and numbers of the uses that have arrived since the last call."""
    reports = [message.uses for message in end.read() if isinstance(message, StepResult) and message.uses is not None]
    return [(each.process, each.use.number) for report in reports for each in report.uses]


def test_uses_of_limits_are_passed_on_to_the_other_connections(worker: TurnedWorker):
    """By an idle engine too, and to later connections; each is told of processes that are gone."""
    first, second = worker.connect("a"), worker.connect("b")
    worker.turn()
    first.send(PostUse((TenantUse("t", 0, 1, choices=1),)))
    worker.now -= 0.25  # no time passes, after which anything would be sent
    worker.turn()
    assert uses_of(first) == [] and uses_of(second) == [("a", 1)]
    worker.turn(2)
    assert uses_of(second) == []
    third = worker.connect("c")
    worker.turn()
    assert uses_of(third) == [("a", 1)]
    first.socket.close()
    worker.turn(2)
    [gone] = [message.uses for message in second.read() if isinstance(message, StepResult) and message.uses is not None]
    assert gone == UseReport((), ("a",))
    late = worker.connect("d")
    worker.turn()
    assert uses_of(late) == []


def test_a_process_that_connects_again_is_not_gone(worker: TurnedWorker):
    """Its earlier connection, which it replaces, is closed a turn later."""
    worker.connect("a").send(PostUse((TenantUse("t", 0, 1),)))
    other = worker.connect("b")
    worker.turn()
    again = worker.connect("a")
    worker.turn(2)
    again.send(PostUse((TenantUse("t", 0, 2),)))
    worker.turn()
    other.read()
    reports = [message.uses for message in other.messages if isinstance(message, StepResult) and message.uses]
    assert [(report.gone, [each.use.number for each in report.uses]) for report in reports] == [((), [1]), ((), [2])]


def test_uses_wait_for_a_connection_that_does_not_read(worker: TurnedWorker):
    """It is then sent the newest only; steps go on, and the worker does not turn in vain meanwhile."""
    first, silent = worker.connect("a"), worker.connect("silent")
    worker.turn()
    blocked = worker.connections.all[1]
    blocked._pending += b"x"  # as if the socket had not taken everything
    monkeypatched, blocked.flush = blocked.flush, lambda: None  # type: ignore[method-assign]
    for number in range(1, 50):
        first.send(PostUse((TenantUse("t", 0, number),)))
        worker.turn()
    assert not worker.connections.has_unsent
    blocked._pending.clear()
    blocked.flush = monkeypatched  # type: ignore[method-assign]
    worker.turn()
    assert uses_of(silent) == [("a", 49)]
