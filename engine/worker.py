"""The engine process: inbox -> steps -> events. One thread, no event loop; it sleeps when there is nothing to do.

Started by `app.life` as `python -m engine.worker FD FD LEVEL FORMAT`, with one end of a socket pair and a heartbeat;
tests run `serve` on a thread.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError, RequestRefused
from engine.frames import (
    Abort,
    ChannelClosed,
    Echo,
    EngineChannel,
    Failed,
    Loading,
    Ready,
    Start,
    Stepped,
    Submit,
    ToEngine,
    Watch,
)
from engine.heartbeat import Heartbeat
from engine.log_queue import start_logging
from engine.request_logging import log_request
from engine.types import EndEvent, Event, FinishReason, Request, Snapshot
from engine.view import snapshot

log = logging.getLogger("carousel.engine")

WATCH_EVERY = 0.2  # seconds between snapshots while something runs
WATCH_IDLE = 2.0  # and while nothing does
BEAT = 1.0  # seconds after which the books are sent while somebody waits, though nothing has happened: we live
LAST_LINES_SECONDS = 1.0  # for queued log lines when the process ends

Builder = Callable[[EngineConfig, Callable[[str, int, int], None]], Engine]


class Worker:
    """One engine and the channel it serves."""

    def __init__(self, channel: EngineChannel, engine: Engine, heartbeat: Heartbeat) -> None:
        self._channel = channel
        self._heartbeat = heartbeat
        self._engine = engine
        self._watching = False
        self._watched_at = 0.0
        self._sent_at = 0.0
        self._refused: list[Event] = []
        self._takes_memory = True

    def run(self, early: list[ToEngine]) -> None:
        """Serve until the other side closes the channel (`ChannelClosed`). `early` came before the engine was ready."""
        for message in early:
            self._handle(message)
        self._tell([])  # the books of an engine that has done nothing yet
        while True:
            for message in self._channel.receive(self._patience()):
                self._handle(message)
            self._heartbeat.beat()
            events: list[Event] = []
            if self._engine.seconds_to_step() == 0.0:
                events = self._engine.step(self._tell)
                self._takes_memory = True
            elif self._takes_memory:
                self._takes_memory = self._engine.take_memory()
            events += self._engine.scheduler.take_events()
            events += self._refused
            self._refused = []
            now = time.monotonic()
            view = self._view(now)
            if events or view is not None or (self._engine.has_work and now - self._sent_at >= BEAT):
                self._sent_at = now
                self._tell(events, view)

    def _tell(self, events: list[Event], view: Snapshot | None = None) -> None:
        self._channel.send(Stepped(tuple(events), self._engine.load(), view))

    def _patience(self) -> float | None:
        """How long the inbox may be waited for: until there is something to do, for ever if nobody looks."""
        if self._takes_memory:
            return 0.0
        seconds = self._engine.seconds_to_step()
        if seconds is not None:
            return min(seconds, BEAT)
        return WATCH_IDLE if self._watching else None

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit(request):
                try:
                    self._engine.submit(request)
                except RequestRefused as error:
                    log_request(log, logging.INFO, request, "refused: %s", error)
                    self._refused += _refusal(request, error)
            case Abort(request_id, choice):
                self._engine.abort(request_id, choice)
            case Echo():
                pass  # this turn of the loop is the sign
            case Watch(on):
                self._watching, self._watched_at = on, 0.0
            case Start():
                log.warning("a second start message was ignored")

    def _view(self, now: float) -> Snapshot | None:
        if not self._watching or now - self._watched_at < WATCH_EVERY or not self._channel.is_clear:
            return None
        self._watched_at = now
        return snapshot(self._engine.scheduler, now)


def _refusal(request: Request, error: RequestRefused) -> list[Event]:
    return [
        EndEvent(request.id, choice, FinishReason.ERROR, str(error), error.code, error.param)
        for choice in request.choices or (0,)
    ]


def serve(sock: socket.socket, build: Builder, heartbeat: Heartbeat) -> None:
    """Wait for `Start`, build the engine, serve until the channel closes."""
    channel = EngineChannel(sock)
    try:
        start, early = _first(channel)
        engine = _build(channel, build, start.config)
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector need not walk through it between two tokens
        channel.send(Ready(engine.info))
        Worker(channel, engine, heartbeat).run(early)
    except ChannelClosed:
        return
    finally:
        channel.close()


def _build(channel: EngineChannel, build: Builder, config: EngineConfig) -> Engine:
    """The engine; or, when it cannot be built, the reason for the other side, and `ChannelClosed` once that is read."""
    try:
        return build(config, lambda what, done, total: channel.send(Loading(what, done, total)))
    except ChannelClosed:
        raise
    except (EngineError, OSError) as error:
        reason = str(error)
    except Exception as error:  # a library's: whatever it is, people are told, and the log says where
        log.exception("the engine could not be built")
        reason = f"{type(error).__name__}: {error}"
    channel.send(Failed(reason))
    while True:
        channel.receive(None)


def _first(channel: EngineChannel) -> tuple[Start, list[ToEngine]]:
    """The start message, and what came with it."""
    while True:
        messages = channel.receive(None)
        if messages and isinstance(messages[0], Start):
            return messages[0], messages[1:]


def main() -> None:
    """Entry point of the process. Arguments: the descriptors of its end of the socket pair and of its heartbeat, the
    log level and the log format."""
    # Service managers tell all processes of a service at once. Answers are finished first: it ends with its channel.
    for told in (signal.SIGTERM, signal.SIGINT):
        signal.signal(told, signal.SIG_IGN)
    descriptor, beats, log_level, log_format = sys.argv[1:]
    logs = start_logging(log_level, log_format)
    from engine.build import build_engine  # imports torch: after logging is up, and never in a test's fake engine

    heartbeat = Heartbeat(int(beats))
    try:
        serve(socket.socket(fileno=int(descriptor)), partial(build_engine, heartbeat=heartbeat), heartbeat)
    except Exception:
        log.exception("the engine failed")
        raise SystemExit(1) from None
    finally:
        logs.writer.close(LAST_LINES_SECONDS)


if __name__ == "__main__":
    main()
