"""What API processes know of a trial before each step: any step may be the engine's last."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from app.engine_client.in_flight import InFlight
from app.engine_client.in_flight_request import SUSPECT_DEATHS
from app.engine_client.member_counts import ReadyMember
from engine.connection import Connection
from engine.ipc import StepResult
from engine.progress import MIN_PROGRESS_TOKENS
from engine.scheduling.batch import Batch
from engine.types import Request, SamplingParams
from tests.engine.api_ends import ApiEnd, TurnedWorker, request
from tests.fakes import text_alone
from tests.profiles import examples

POISON = 666


class Killed(Exception):
    """The engine process is killed; only what it had sent before is known."""


class ObservedWorker(TurnedWorker):
    """A worker that notes before each step the trial that each connection was last sent, and that dies of `POISON`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[set[str], list[str | None]]] = []  # computed requests, trial by connection
        self._launch = self.engine._runner.launch
        self.engine._runner.launch = self.launch

    def known(self) -> list[str | None]:
        """Return the trial that each connection knows; None if it has no results."""
        known: list[str | None] = []
        for end in self._ends:
            end.read()
            results = [message for message in end.messages if isinstance(message, StepResult)]
            known.append(results[-1].trial if results else None)
        return known

    def launch(self, batch: Batch):
        slots = [*batch.decodes, *(chunk.slot for chunk in batch.chunks)]
        sequences = [self.engine.scheduler.slots[slot] for slot in slots]
        self.steps.append(({sequence.request.id for sequence in sequences}, self.known()))
        if any(POISON in sequence.request.prompt for sequence in sequences):
            raise Killed
        return self._launch(batch)


@pytest.fixture
def worker() -> Iterator[ObservedWorker]:
    observed = ObservedWorker()
    yield observed
    observed.close()


def test_all_connections_know_a_trial_before_its_first_step_and_its_end_before_the_next(worker: ObservedWorker):
    """Both are sent before the step is computed, also to processes without any request."""
    first, second, _ = worker.connect("a"), worker.connect("b"), worker.connect("idle")
    first.submit(request("a1", 30))
    worker.turn(3)
    second.submit(request("b1", 30), request("trial", 10, is_trial=True))
    worker.turn_until(lambda: second.end("trial") and first.end("a1") and second.end("b1"))
    assert len([computed for computed, _ in worker.steps if computed == {"trial"}]) >= MIN_PROGRESS_TOKENS
    for computed, known in worker.steps:
        assert len(set(known)) == 1, "connections know different things"
        assert computed == {known[0]} if known[0] else True
    assert {"a1", "b1", "trial"} in [computed for computed, _ in worker.steps]
    for end, name, tokens in ((first, "a1", 30), (second, "b1", 30), (second, "trial", 10)):
        assert end.tokens(name) == text_alone([1, 2], 0, tokens)


def test_a_process_that_connects_during_a_trial_knows_it_before_the_next_step(worker: ObservedWorker):
    """Its requests, of which it knows nothing yet, are not blamed for the end of the engine."""
    first = worker.connect("a")
    first.submit(request("trial", 10, prompt=(1,) * 20, is_trial=True))
    worker.turn()
    assert worker.engine.trial == "trial"
    second = worker.connect("b")
    second.submit(request("b1", 5))
    worker.turn_until(lambda: second.end("b1"))
    assert all(known == ["trial", "trial"] for computed, known in worker.steps[1:] if computed == {"trial"})


def test_a_trial_is_known_before_it_is_submitted(worker: ObservedWorker, monkeypatch: pytest.MonkeyPatch):
    """The engine may die of it before any step, while the steps of others go on."""
    first, second = worker.connect("a"), worker.connect("b")
    second.submit(request("b1", 30))
    worker.turn(2)
    submit, known = worker.engine.submit, []

    def submit_and_note(each: Request) -> None:
        known.append(worker.known())
        submit(each)

    monkeypatch.setattr(worker.engine, "submit", submit_and_note)
    first.submit(request("trial", 10, is_trial=True), request("ordinary", 3))
    worker.turn()
    assert known == [["trial", "trial"], ["trial", "trial"]]
    worker.turn_until(lambda: first.end("trial"))


def test_a_process_that_does_not_read_delays_no_trial_for_long(worker: ObservedWorker, monkeypatch: pytest.MonkeyPatch):
    """The engine waits for it once and within a bound; later announcements do not wait for it at all."""
    waits: list[list[str]] = []
    flush = worker.connections.flush

    def flush_and_note(connections: list[Connection], seconds: float) -> None:
        waits.append([connection.process for connection in connections])
        flush(connections, 0.0)

    monkeypatch.setattr(worker.connections, "flush", flush_and_note)
    silent, reading = worker.connect("silent"), worker.connect("reading")
    reading.submit(request("r", 60))
    worker.turn()
    silent_connection = worker.connections.all[0]
    silent_connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the smallest that there is
    silent.submit(request("s", 3000))
    worker._ends.remove(silent)
    worker.turn_until(lambda: not silent_connection.is_drained)
    reading.submit(request("trial", 10, is_trial=True))
    worker.turn_until(lambda: reading.end("trial"))
    assert waits and all("silent" not in waited for waited in waits)
    silent.socket.close()


class Process:
    """An API process: requests in flight, fed with everything that a worker has sent to its connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = InFlight(random.Random(0), has_several=False)
        self.ends: dict[str, str] = {}
        self.end: ApiEnd | None = None
        self.received = 0  # messages of the current engine

    def add(self, each: Request) -> None:
        def sink(event) -> None:
            if getattr(event, "finish", None) is not None:
                assert each.id not in self.ends
                self.ends[each.id] = getattr(event, "code", "")

        self.in_flight.add(each, sink)

    def connect(self, worker: TurnedWorker) -> None:
        self.end, self.received = worker.connect(self.name), 0

    def send(self) -> None:
        assert self.end is not None
        for requests in self.in_flight.requests_to_send([ReadyMember(0, 4, None)]).values():
            self.end.submit(*requests)

    def receive(self) -> None:
        assert self.end is not None
        self.end.read()
        new, self.received = self.end.messages[self.received :], len(self.end.messages)
        for message in new:
            assert isinstance(message, StepResult)
            self.in_flight.note_trial(0, message.trial)
            for event in message.events:
                self.in_flight.handle(event)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_of_several_api_processes_only_the_requests_that_kill_engines_end(seed: int):
    """Each kills at most three engines by itself, and processes receive what was sent before a kill at any time."""
    drawn = random.Random(seed)
    processes = [Process(name) for name in "abc"[: drawn.randint(2, 3)]]
    names = [f"r{number}" for number in range(drawn.randint(3, 9))]
    bad = drawn.sample(names, drawn.randint(1, 2))
    for name in names:
        prompt = (1, POISON) if name in bad else (1, 2)
        sampling = SamplingParams(max_tokens=drawn.randint(1, 12))
        drawn.choice(processes).add(Request(id=name, prompt=prompt, sampling=sampling))
    killed = 0
    while any(len(each.in_flight) for each in processes):
        worker = ObservedWorker()
        for process in processes:
            process.connect(worker)
        try:
            while any(len(each.in_flight) for each in processes):
                for process in processes:
                    if drawn.random() < 0.7:
                        process.receive()
                        process.send()
                worker.turn()
        except Killed:
            killed += 1
            assert killed <= (SUSPECT_DEATHS + 1) * len(bad)
            for process in processes:
                process.receive()
                process.in_flight.lose_engine()
        finally:
            worker.close()
    ends = {name: code for process in processes for name, code in process.ends.items()}
    assert ends == {name: "engine_died" if name in bad else "" for name in names}
