"""The API process's end of connections to a worker that a test turns, with a fake model."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.connection import Connection
from engine.connections import Connections
from engine.engine import Engine
from engine.heartbeat import Heartbeat
from engine.ipc import API_DECODER, FrameReader, FromEngine, StepResult, Submit, ToEngine, encode
from engine.listener import Listener
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import EndEvent, Event, Request, SamplingParams, TokenEvent
from engine.worker import Worker
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import MemoryRunner

PAGES = 1024
MAX_IDLE_SECONDS = 0.02
CONFIG = EngineConfig(model="fake", max_num_seqs=4, page_size=4)


def fake_engine(config: EngineConfig = CONFIG, progress: Callable[[str, int, int], None] | None = None) -> Engine:
    """Return an engine with a fake model, whose steps take no time."""
    policy = make_policy(config, Costs(1e9, 1e5))
    scheduler = Scheduler(config, policy, num_pages=PAGES, host_pages=8, max_len=4 * PAGES)
    info = model_info(PAGES, config.max_num_seqs, 4, max_model_len=4 * PAGES)
    return Engine(config, info, scheduler, MemoryRunner(PAGES, 8, 4))


def request(name: str, tokens: int = 5, **more) -> Request:
    """Return a request for some tokens."""
    return Request(**{"id": name, "prompt": (1, 2), "sampling": SamplingParams(max_tokens=tokens), **more})


@dataclass
class ApiEnd:
    """One end of a socket, with everything that the engine has sent."""

    socket: socket.socket
    messages: list[FromEngine] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.socket.setblocking(False)
        self._reader = FrameReader(API_DECODER)

    def send(self, *messages: ToEngine) -> None:
        """Send messages."""
        self.socket.setblocking(True)
        self.socket.sendall(b"".join(map(encode, messages)))
        self.socket.setblocking(False)

    def submit(self, *requests: Request) -> None:
        """Submit requests, whose moments are on the engine's clock."""
        self.send(*(Submit(each) for each in requests))  # type: ignore[arg-type]

    def read(self) -> list[FromEngine]:
        """Return the messages that have arrived since the last call."""
        new: list[FromEngine] = []
        while not self.is_closed:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            self.is_closed = not data
            new += self._reader.feed(data)
        self.messages += new
        return new

    @property
    def events(self) -> list[Event]:
        """Return all events that have arrived."""
        self.read()
        return [event for each in self.messages if isinstance(each, StepResult) for event in each.events]

    def tokens(self, request_id: str, choice: int = 0) -> list[int]:
        """Return the tokens of a choice that have arrived."""
        mine = [event for event in self.events if (event.request_id, event.choice) == (request_id, choice)]
        return [event.token_id for event in mine if isinstance(event, TokenEvent)]

    def end(self, request_id: str) -> TokenEvent | EndEvent | None:
        """Return the event that has ended a request of one choice."""
        ends = (event for event in self.events if event.request_id == request_id and getattr(event, "finish", None))
        return next(ends, None)  # type: ignore[arg-type]


class ImpatientConnections(Connections):
    """Connections that wait only briefly for a message to an idle worker, so that a faulty one does not hang."""

    def receive(self, timeout: float | None) -> list[tuple[Connection, ToEngine]]:
        """Do as `Connections.receive`."""
        return super().receive(MAX_IDLE_SECONDS if timeout is None else timeout)


class TurnedWorker:
    """A worker with a fake engine, of which the test makes each turn and sets the clock."""

    def __init__(self, listener: Listener | None = None, orphan_grace: float = 30.0) -> None:
        self.now = 1000.0
        self._ends: list[ApiEnd] = []
        self.engine = fake_engine()
        self.connections = ImpatientConnections(listener=listener)
        self.worker = Worker(self.connections, self.engine, Heartbeat(), orphan_grace, lambda: self.now)

    def connect(self, process: str) -> ApiEnd:
        """Return the API's end of a new connection."""
        ours, theirs = socket.socketpair()
        self.connections.add(Connection(theirs, process))
        self._ends.append(ApiEnd(ours))
        return self._ends[-1]

    def turn(self, turns: int = 1) -> None:
        """Make some turns, between which a quarter of a second passes."""
        for _ in range(turns):
            self.now += 0.25
            self.worker.turn()

    def turn_until(self, condition: Callable[[], object]) -> None:
        """Make turns until a condition holds; each step brings a token, so that it must soon."""
        for _ in range(2000):
            if condition():
                return
            self.turn()
        raise AssertionError("the condition never held")

    def close(self) -> None:
        """Close all sockets."""
        self.connections.close()
        for end in self._ends:
            end.socket.close()
