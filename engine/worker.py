"""Main loop of the engine process: messages -> steps -> events. One thread, no event loop; it sleeps when idle.

Started by `app.engine_client.engine_process` as `python -m engine.worker FD FD LEVEL FORMAT PID`, with one end of a
socket pair and a heartbeat; tests run `serve` on a thread.
"""

from __future__ import annotations

import gc
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from engine.clock import engine_time
from engine.config import EngineConfig
from engine.connection import Connection
from engine.connections import Connections
from engine.engine import Engine
from engine.errors import EngineError
from engine.heartbeat import Heartbeat
from engine.intake import Intake
from engine.ipc import (
    Abort,
    Adopt,
    Change,
    ChannelClosed,
    Draining,
    EchoRequest,
    Failed,
    Forget,
    Hello,
    Keep,
    LoadProgress,
    PostUse,
    Ready,
    ReleaseOrphans,
    Start,
    Submit,
    ToEngine,
    UseVocabulary,
    WatchPrefixes,
    WatchSnapshots,
)
from engine.load import Snapshot
from engine.log_queue import start_logging
from engine.owners import Owners
from engine.parent_death import end_with_parent
from engine.snapshot import snapshot
from engine.types import Event

log = logging.getLogger("carousel.engine")

SNAPSHOT_SECONDS = 0.2  # between snapshots while requests run
IDLE_SNAPSHOT_SECONDS = 2.0  # between snapshots while idle
# Seconds after which a turn of the loop sends the load although nothing has happened, as a sign of life. The loop of an
# idle engine turns when a message arrives.
HEARTBEAT_SECONDS = 0.25
PREPARATION_POLL_SECONDS = 0.002  # between looks for prepared requests
# Seconds for which a step waits until all API processes have been sent that it belongs to a trial, or no longer does.
MAX_ANNOUNCEMENT_SECONDS = 0.25
MAX_LOG_FLUSH_SECONDS = 1.0  # maximum time for writing queued log lines when the process ends

Builder = Callable[[EngineConfig, Callable[[str, int, int], None]], Engine]


class Worker:
    """Loop that connects one engine to its connections."""

    def __init__(
        self,
        connections: Connections,
        engine: Engine,
        heartbeat: Heartbeat,
        orphan_grace: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """orphan_grace: seconds for which a request goes on after the loss of its connection."""
        self._connections = connections
        self._heartbeat = heartbeat
        self._engine = engine
        self._clock = clock
        self._intake = Intake(engine)
        self._owners = Owners(engine, self._intake, orphan_grace, clock)
        self._snapshot_at = 0.0
        self._sent_at = 0.0
        self._sent_trial = ""
        self._should_prefault = True

    def run(self, early: list[tuple[Connection, ToEngine]]) -> None:
        """Serve until the last connection is closed (`ChannelClosed`).

        `early` are the messages that arrived before the engine was ready.
        """
        for connection, message in early:
            self._handle(connection, message)
        while True:
            self.turn()

    def turn(self) -> None:
        """Handle messages, compute a step if one is due, and send its results."""
        messages = self._connections.receive(self._poll_timeout())
        for connection in self._connections.take_lost():
            self._owners.lose(connection)
        self._owners.expire()
        for connection, message in messages:
            self._handle(connection, message)
        self._heartbeat.beat()
        self._owners.submit_prepared(self._connections.all)
        events: list[Event] = []
        trial = self._engine.trial
        if trial != self._sent_trial or (trial and self._connections.has_newcomers):
            self._announce(trial)
        if self._engine.seconds_to_step() == 0.0:
            events = self._engine.step(self._send_step)
            self._should_prefault = True
        elif self._should_prefault:
            self._should_prefault = self._engine.prefault_pages()
        self._route(events)
        now = self._clock()
        view = self._take_snapshot(now)
        if self._connections.has_unsent or view is not None or now - self._sent_at >= HEARTBEAT_SECONDS:
            self._sent_at = now
            self._send(self._engine.trial, view)

    def drain(self, seconds: float) -> None:
        """Admit no further connection, and go on until no connection has a request, for at most `seconds`."""
        ends_at = self._clock() + seconds
        self._connections.stop_listening()
        self._connections.broadcast(Draining())
        while self._owners.has_requests and self._clock() < ends_at:
            self.turn()

    def _route(self, events: list[Event]) -> None:
        """Give the events of a step, and those since then, to the owners of their requests."""
        self._owners.route(events + self._intake.take_events())

    def _send_step(self, events: list[Event]) -> None:
        """Send the events before a step. If the process dies in it, API processes know the trial that it belongs to."""
        self._route(events)
        if self._sent_trial == self._engine.trial:
            self._send(self._sent_trial)
        else:
            self._announce(self._engine.trial)

    def _announce(self, trial: str) -> None:
        """Send the results so far and the request that is computed alone from now on, and wait until they are sent.

        Does not wait for an API process that has not read earlier results, so that it cannot delay each announcement.
        """
        prompt_readers = [connection for connection in self._connections.all if connection.is_drained]
        self._send(trial)
        self._connections.flush(prompt_readers, MAX_ANNOUNCEMENT_SECONDS)

    def _send(self, trial: str, view: Snapshot | None = None) -> None:
        self._sent_trial = trial
        marks = self._engine.scheduler.kv_manager.pool.marks
        self._connections.send_step(self._engine.load(), self._heartbeat.count, view, marks, trial)

    def _poll_timeout(self) -> float | None:
        """Return the seconds to wait for a message; None (no limit) while idle and not watched."""
        if self._should_prefault:
            return 0.0
        seconds = self._engine.seconds_to_step()
        if self._intake.is_preparing:
            return min(PREPARATION_POLL_SECONDS, PREPARATION_POLL_SECONDS if seconds is None else seconds)
        if seconds is not None:
            return min(seconds, HEARTBEAT_SECONDS)
        return IDLE_SNAPSHOT_SECONDS if self._connections.want_snapshot else None

    def _handle(self, connection: Connection, message: ToEngine) -> None:
        match message:
            case Submit(request):
                if request.is_trial:
                    self._announce(request.id)  # the process may die of its submission already
                self._owners.submit(connection, request)
            case Abort(request_id, choice, moves):
                self._owners.abort(connection, request_id, choice, moves=moves)
            case Change():
                self._owners.change(connection, message)
            case Keep(request_id, choice):
                self._owners.keep(request_id, choice)
            case Adopt(name, cache_salt):
                self._owners.adopt(connection, name, cache_salt)
            case Forget(request_id):
                self._owners.forget(request_id)
            case ReleaseOrphans():
                self._owners.release(connection.process)
            case UseVocabulary(vocabulary):
                self._engine.use_vocabulary(vocabulary)
            case PostUse(uses):
                self._connections.uses.post(connection.process, uses)
            case EchoRequest():
                self._sent_at = -math.inf  # this turn of the loop counts a heartbeat, and sends it
            case WatchSnapshots(on):
                connection.is_watching, self._snapshot_at = on, 0.0
            case WatchPrefixes():
                connection.knows_prefixes = False
            case Start() | Hello():
                log.warning("a message that must be the first one was ignored: %s", type(message).__name__)

    def _take_snapshot(self, now: float) -> Snapshot | None:
        if now - self._snapshot_at < SNAPSHOT_SECONDS or not self._connections.want_snapshot:
            return None
        self._snapshot_at = now
        return snapshot(self._engine.scheduler, now)


def serve(sock: socket.socket, build: Builder, heartbeat: Heartbeat) -> None:
    """Wait for `Start`, build the engine, serve until the channel closes."""
    connection = Connection(sock)
    connections = Connections(connection)
    try:
        start, early = _receive_start(connections)
        engine = _build(connections, connection, build, start.config)
        gc.collect()
        gc.freeze()  # exempt loaded objects from garbage collection between tokens
        connection.send(Ready(engine.info, engine_time()))
        Worker(connections, engine, heartbeat).run(early)
    except ChannelClosed:
        return
    finally:
        connections.close()


def _build(connections: Connections, connection: Connection, build: Builder, config: EngineConfig) -> Engine:
    """Return the engine; if it cannot be built, send the reason and wait for `ChannelClosed`."""
    try:
        return build(config, partial(_report_progress, connection))
    except ChannelClosed:
        raise
    except (EngineError, OSError) as error:
        reason = str(error)
    except Exception as error:  # any exception of a library: report it, with the traceback in the log
        log.exception("the engine could not be built")
        reason = f"{type(error).__name__}: {error}"
    for handler in logging.getLogger().handlers:
        handler.flush()  # the other process writes the reason after the lines that lead to it
    connection.send(Failed(reason))
    while True:
        connections.receive(None)


def _report_progress(connection: Connection, stage: str, done: int, total: int) -> None:
    """Send the progress of a start. Raises `ChannelClosed` if nothing waits for the engine any more."""
    connection.send(LoadProgress(stage, done, total))
    if connection.loss:
        raise ChannelClosed


def _receive_start(connections: Connections) -> tuple[Start, list[tuple[Connection, ToEngine]]]:
    """Return the start message and the messages that arrived with it."""
    while True:
        messages = connections.receive(None)
        if messages and isinstance(messages[0][1], Start):
            return messages[0][1], messages[1:]


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
