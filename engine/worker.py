"""Main loop of the engine process: messages -> steps -> events. One thread, no event loop; it sleeps when idle.

Started by `app.engine_client.engine_process` as `python -m engine.worker FD FD LEVEL FORMAT PID`, with one end of a
socket pair and a heartbeat; tests run `serve` on a thread.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec.structs import replace

from engine.clock import engine_time
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError, RequestRefused
from engine.heartbeat import Heartbeat
from engine.ipc import (
    Abort,
    ChannelClosed,
    EchoRequest,
    EngineChannel,
    Failed,
    LoadProgress,
    Ready,
    Start,
    StepResult,
    Submit,
    ToEngine,
    UseVocabulary,
    WatchSnapshots,
)
from engine.log_queue import start_logging
from engine.parent_death import end_with_parent
from engine.request_logging import log_request
from engine.snapshot import snapshot
from engine.types import EndEvent, Event, FinishReason, Phase, Request, Snapshot, StatusEvent, WaitReason

log = logging.getLogger("carousel.engine")

SNAPSHOT_SECONDS = 0.2  # between snapshots while requests run
IDLE_SNAPSHOT_SECONDS = 2.0  # between snapshots while idle
HEARTBEAT_SECONDS = (
    1.0  # seconds after which the load is sent while requests exist although nothing has happened, as a sign of life
)
COMPILE_POLL_SECONDS = 0.002  # between looks for compiled grammars
MAX_LOG_FLUSH_SECONDS = 1.0  # maximum time for writing queued log lines when the process ends

Builder = Callable[[EngineConfig, Callable[[str, int, int], None]], Engine]


class Worker:
    """Loop that connects one engine to its channel."""

    def __init__(self, channel: EngineChannel, engine: Engine, heartbeat: Heartbeat) -> None:
        self._channel = channel
        self._heartbeat = heartbeat
        self._engine = engine
        self._is_watched = False
        self._watched_at = 0.0
        self._sent_at = 0.0
        self._refusals: list[Event] = []
        self._compiling: dict[str, tuple[Request, Future[Any]]] = {}  # requests whose grammars are being compiled
        self._should_prefault = True

    def run(self, early: list[ToEngine]) -> None:
        """Serve until the other side closes the channel (`ChannelClosed`).

        `early` are the messages that arrived before the engine was ready.
        """
        for message in early:
            self._handle(message)
        self._send_step([])  # initial load
        while True:
            for message in self._channel.receive(self._poll_timeout()):
                self._handle(message)
            self._heartbeat.beat()
            if self._compiling:
                self._submit_compiled()
            events: list[Event] = []
            if self._engine.seconds_to_step() == 0.0:
                events = self._engine.step(self._send_step)
                self._should_prefault = True
            elif self._should_prefault:
                self._should_prefault = self._engine.prefault_pages()
            events += self._engine.scheduler.take_events()
            events += self._refusals
            self._refusals = []
            now = time.monotonic()
            view = self._take_snapshot(now)
            if events or view is not None or (self._engine.has_work and now - self._sent_at >= HEARTBEAT_SECONDS):
                self._sent_at = now
                self._send_step(events, view)

    def _send_step(self, events: list[Event], view: Snapshot | None = None) -> None:
        self._channel.send(StepResult(tuple(events), self._engine.load(), engine_time(), view))

    def _poll_timeout(self) -> float | None:
        """Return the seconds to wait for a message; None (no limit) while idle and not watched."""
        if self._should_prefault:
            return 0.0
        seconds = self._engine.seconds_to_step()
        if self._compiling:
            return min(COMPILE_POLL_SECONDS, COMPILE_POLL_SECONDS if seconds is None else seconds)
        if seconds is not None:
            return min(seconds, HEARTBEAT_SECONDS)
        return IDLE_SNAPSHOT_SECONDS if self._is_watched else None

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit(request):
                self._submit(request)
            case Abort(request_id, choice):
                self._abort(request_id, choice)
            case UseVocabulary(vocabulary):
                self._engine.use_vocabulary(vocabulary)
            case EchoRequest():
                pass  # this turn of the loop counts a heartbeat
            case WatchSnapshots(on):
                self._is_watched, self._watched_at = on, 0.0
            case Start():
                log.warning("a second start message was ignored")

    def _submit(self, request: Request) -> None:
        """Submit a request, or compile its grammar first; meanwhile steps go on."""
        try:
            compilation = self._engine.constraints.prepare(request) if self._engine.constraints is not None else None
            if compilation is None:
                self._engine.submit(request)
        except RequestRefused as error:
            log_request(log, logging.INFO, request, "refused: %s", error)
            self._refusals += _refusal(request, error)
            return
        if compilation is not None:
            self._compiling[request.id] = request, compilation
            self._refusals += _compiling_status(request)

    def _submit_compiled(self) -> None:
        """Submit the requests whose grammars have been compiled, or refused."""
        done = [request for request, compilation in self._compiling.values() if compilation.done()]
        for request in done:
            del self._compiling[request.id]
            self._submit(request)

    def _abort(self, request_id: str, choice: int | None) -> None:
        """End a request or one of its choices."""
        if request_id not in self._compiling:
            self._engine.abort(request_id, choice)
            return
        request, compilation = self._compiling.pop(request_id)
        ended = [index for index in request.choices if choice is None or index == choice]
        for index in ended:
            self._refusals += [
                StatusEvent(request_id, index, Phase.ENDED, monotonic_time=time.monotonic()),
                EndEvent(request_id, index, FinishReason.ABORT),
            ]
        if left := {index: request.output_so_far.get(index, ()) for index in request.choices if index not in ended}:
            self._compiling[request_id] = replace(request, output_so_far=left), compilation

    def _take_snapshot(self, now: float) -> Snapshot | None:
        if not self._is_watched or now - self._watched_at < SNAPSHOT_SECONDS or not self._channel.is_drained:
            return None
        self._watched_at = now
        return snapshot(self._engine.scheduler, now)


def _compiling_status(request: Request) -> list[Event]:
    now = time.monotonic()
    return [
        StatusEvent(request.id, choice, Phase.QUEUED, cause=WaitReason.GRAMMAR, monotonic_time=now)
        for choice in request.choices
    ]


def _refusal(request: Request, error: RequestRefused) -> list[Event]:
    return [
        EndEvent(request.id, choice, FinishReason.ERROR, str(error), error.code, error.param)
        for choice in request.choices or (0,)
    ]


def serve(sock: socket.socket, build: Builder, heartbeat: Heartbeat) -> None:
    """Wait for `Start`, build the engine, serve until the channel closes."""
    channel = EngineChannel(sock)
    try:
        start, early = _receive_start(channel)
        engine = _build(channel, build, start.config)
        gc.collect()
        gc.freeze()  # exempt loaded objects from garbage collection between tokens
        channel.send(Ready(engine.info, engine_time()))
        Worker(channel, engine, heartbeat).run(early)
    except ChannelClosed:
        return
    finally:
        channel.close()


def _build(channel: EngineChannel, build: Builder, config: EngineConfig) -> Engine:
    """Return the engine; if it cannot be built, send the reason and wait for `ChannelClosed`."""
    try:
        return build(config, lambda what, done, total: channel.send(LoadProgress(what, done, total)))
    except ChannelClosed:
        raise
    except (EngineError, OSError) as error:
        reason = str(error)
    except Exception as error:  # any exception of a library: report it, with the traceback in the log
        log.exception("the engine could not be built")
        reason = f"{type(error).__name__}: {error}"
    channel.send(Failed(reason))
    while True:
        channel.receive(None)


def _receive_start(channel: EngineChannel) -> tuple[Start, list[ToEngine]]:
    """Return the start message and the messages that arrived with it."""
    while True:
        messages = channel.receive(None)
        if messages and isinstance(messages[0], Start):
            return messages[0], messages[1:]


def main() -> None:
    """Run the engine process.

    Arguments: the descriptors of its end of the socket pair and of its heartbeat, the log level and the log format, and
    the ID of the process that started it.
    """
    descriptor, heartbeat_descriptor, log_level, log_format, parent = sys.argv[1:]
    # Its end of the channel closes with the other process too, but is not read during a step or while a model loads.
    end_with_parent(int(parent))
    # Service managers signal all processes of a service at once. This one ends with its channel, after the last
    # answers.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, signal.SIG_IGN)
    logs = start_logging(log_level, log_format)
    # Imports torch, so only after logging is set up, and never with a test's fake engine.
    from engine.build import build_engine

    heartbeat = Heartbeat(int(heartbeat_descriptor))
    try:
        serve(socket.socket(fileno=int(descriptor)), partial(build_engine, heartbeat=heartbeat), heartbeat)
    except Exception:
        log.exception("the engine failed")
        raise SystemExit(1) from None
    finally:
        logs.writer.close(MAX_LOG_FLUSH_SECONDS)


if __name__ == "__main__":
    main()
