"""EngineClient: the API's side of the engine. Starts the process, sends requests, hands events to whoever asked.

Frames become calls of plain functions then and there, so that a token costs no task switch. Knows nothing of HTTP or
text.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import cast

import engine
from engine.checks import check_request
from engine.config import EngineConfig
from engine.frames import (
    Abort,
    Failed,
    FrameReader,
    FromEngine,
    Loading,
    Ready,
    Start,
    Stepped,
    Submit,
    ToEngine,
    Watch,
    encode,
    from_engine,
)
from engine.types import EndEvent, Event, FinishReason, Load, ModelInfo, Request, Snapshot
from engine.worker import Builder, serve

log = logging.getLogger("carousel.client")

# How long an idle OpenMP thread of the engine spins before it sleeps, where torch computes on a CPU. Not at all slows
# down small models whose operations follow each other within microseconds; as long as it likes takes the cores that
# this process needs.
ENGINE_ENVIRONMENT = {"GOMP_SPINCOUNT": "50000"}

Sink = Callable[[Event], None]

# Events handed out before the event loop has its turn: for a millisecond or two nobody else is heard.
EVENTS_A_TURN = 64


class Phase(Enum):
    """What the engine is doing as a whole."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineUnavailable(Exception):
    """The engine is not ready, or gone."""


class EngineClient:
    """One engine, in a process of its own; with `build`, on a thread of this one (tests)."""

    def __init__(self, config: EngineConfig, build: Builder | None = None) -> None:
        self.config = config
        self.phase = Phase.LOADING
        self.loading = Loading("start", 0, 1)
        self.failure = ""
        self.info: ModelInfo | None = None
        self.load: Load | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._build = build
        self._thread: threading.Thread | None = None
        self._sinks: dict[str, tuple[Sink, set[int]]] = {}  # with the choices that have not ended
        self._watchers: set[Callable[[Snapshot, Load], None]] = set()
        self._changed = asyncio.Event()
        self._channel = _Channel(self._hear, self._lose)

    # Life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine and begin to load. Returns at once; `ready` waits."""
        ours, theirs = socket.socketpair()
        if self._build is None:
            self.process = _spawn(theirs)
            theirs.close()
        else:
            self._thread = threading.Thread(target=serve, args=(theirs, self._build), name="engine", daemon=True)
            self._thread.start()
        await asyncio.get_running_loop().create_connection(lambda: self._channel, sock=ours)
        self._channel.send(Start(self.config))

    async def ready(self) -> ModelInfo:
        """Wait until requests are served. Raises `EngineUnavailable` with one line that says why not."""
        while self.phase is Phase.LOADING:
            await self._changed.wait()
        if self.info is None or self.phase is not Phase.READY:
            raise EngineUnavailable(self.failure or "the engine is stopped")
        return self.info

    async def stop(self) -> None:
        """Close the channel and wait for the process to end."""
        self._set_phase(Phase.STOPPED)
        self._channel.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5)
        if self.process is not None:
            try:
                await asyncio.to_thread(self.process.wait, 5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                await asyncio.to_thread(self.process.wait)

    # Requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, sink: Sink) -> None:
        """Send `request`; `sink` is called with each of its events, in order, until every choice has ended.

        Raises `RequestRefused` for what can never be served and `EngineUnavailable` when nothing is served.
        """
        if self.phase is not Phase.READY or self.info is None:
            raise EngineUnavailable(self.failure or "the engine is not ready")
        check_request(request, self.info)
        self._sinks[request.id] = (sink, set(range(request.n)))
        self._channel.send(Submit(request))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Ask the engine to end a request or one choice. Its `EndEvent` still arrives at the sink."""
        if request_id in self._sinks and self.phase is Phase.READY:
            self._channel.send(Abort(request_id, choice))

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._sinks)

    def watch(self, watcher: Callable[[Snapshot, Load], None]) -> None:
        """Call `watcher` with each snapshot from now on."""
        if not self._watchers:
            self._channel.send(Watch(True))
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[Snapshot, Load], None]) -> None:
        """Stop calling `watcher`; the engine stops making snapshots when nobody looks."""
        self._watchers.discard(watcher)
        if not self._watchers:
            self._channel.send(Watch(False))

    # Inside -------------------------------------------------------------------------------------------------------

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self._changed.set()
        self._changed = asyncio.Event()

    def _hear(self, message: FromEngine) -> Iterator[None]:
        """Act on a message; yields after each event."""
        match message:
            case Stepped(events, load, snapshot):
                self.load = load
                for event in events:
                    self._route(event)
                    yield
                if snapshot is not None:
                    for watcher in list(self._watchers):
                        watcher(snapshot, load)
            case Loading():
                self.loading = message
                self._changed.set()
                self._changed = asyncio.Event()
            case Ready(info):
                self.info = info
                self._set_phase(Phase.READY)
            case Failed(why):
                self._lose(why)

    def _route(self, event: Event) -> None:
        entry = self._sinks.get(event.request_id)
        if entry is None:
            return
        sink, open_choices = entry
        if getattr(event, "finish", None) is not None:
            open_choices.discard(event.choice)
            if not open_choices:
                del self._sinks[event.request_id]
        try:
            sink(event)
        except Exception:
            # One request's mistake must not end the task that serves all others.
            log.exception("an event of request %s could not be taken in", event.request_id)

    def _lose(self, why: str) -> None:
        """Nothing more will come: say so to everybody who waits. The first reason is the one that counts, and being
        stopped is one."""
        if self.phase in (Phase.FAILED, Phase.STOPPED):
            return
        self.failure = why
        if self.phase is Phase.READY:  # while it loads, whoever waits for `ready` says it
            log.error("%s", why)
        self._set_phase(Phase.FAILED)
        self.load = None  # nothing runs any more, and nothing waits
        sinks, self._sinks = self._sinks, {}
        for request_id, (sink, open_choices) in sinks.items():
            for choice in sorted(open_choices):
                sink(EndEvent(request_id, choice, FinishReason.ERROR, why, "engine_unavailable"))


class _Channel(asyncio.Protocol):
    """The API's end of the socket: messages in order, a few events a turn. What comes while it is behind stays in the
    socket, so the engine notices and sends nothing that is not owed to anybody.

    hear: acts on a message, and yields after each of its events. lose: told why when nothing more will come.
    """

    def __init__(self, hear: Callable[[FromEngine], Iterator[None]], lose: Callable[[str], None]) -> None:
        self._hear = hear
        self._lose = lose
        self._frames = FrameReader(from_engine)
        self._messages: deque[FromEngine] = deque()
        self._acting: Iterator[None] | None = None  # while it is behind
        self._transport: asyncio.Transport | None = None
        self._has_ended = False

    def send(self, message: ToEngine) -> None:
        """One frame; nothing, when nobody is there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def close(self) -> None:
        """Hang up: nothing more is heard."""
        self._messages.clear()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes

    def data_received(self, data: bytes) -> None:
        try:
            self._messages.extend(self._frames.feed(data))
        except ValueError as error:
            self.close()
            self._lose(f"the engine sent a frame that cannot be read: {error}")
            return
        if self._acting is None:
            self._acting = self._act()
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._has_ended = True
        if self._acting is None:
            self._lose("the engine process ended unexpectedly")

    def _act(self) -> Iterator[None]:
        while self._messages:
            try:
                yield from self._hear(self._messages.popleft())
            except Exception:  # a watcher's mistake must not end what serves everybody
                log.exception("a message of the engine could not be acted on")

    def _go_on(self) -> None:
        assert self._acting is not None and self._transport is not None
        for count, _ in enumerate(self._acting, 1):
            if count == EVENTS_A_TURN:
                if self._transport.is_reading():
                    self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._acting = None
        if not (self._transport.is_closing() or self._transport.is_reading()):
            self._transport.resume_reading()
        if self._has_ended:
            self._lose("the engine process ended unexpectedly")


def _spawn(sock: socket.socket) -> subprocess.Popen[bytes]:
    """The engine as a fresh interpreter. It finds the same packages as this one, wherever it was started."""
    path = str(Path(engine.__file__).resolve().parent.parent)
    paths = [path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**ENGINE_ENVIRONMENT, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-m", "engine.worker", str(sock.fileno())],
        pass_fds=[sock.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal is ours to handle; the engine ends when its channel closes
    )
