"""Engine process behind TCP: builds the engine, then serves any number of API processes until a signal ends it."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType

from engine.config import EngineConfig
from engine.connections import Connections
from engine.heartbeat import Heartbeat
from engine.ipc import ChannelClosed
from engine.listener import Listener
from engine.network import Address
from engine.worker import Builder, Worker

log = logging.getLogger("carousel.engine")

HANG_UP_SECONDS = 2.0  # for API processes to receive the last results
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of an engine process behind TCP. sock: bound, and owned by the engine. Times are in seconds."""

    sock: socket.socket
    token: str
    tls: ssl.SSLContext | None
    orphan_grace: float
    drain_seconds: float


class StopSignal:
    """The first SIGTERM or SIGINT, which begins a drain. A second one ends the process at once."""

    def __init__(self) -> None:
        self.is_set = False
        self.wakeup, self._signalled = socket.socketpair()  # ends the wait for messages
        for end in (self.wakeup, self._signalled):
            end.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno())
        self._previous = [(number, signal.signal(number, self._handle)) for number in ENDING_SIGNALS]

    def close(self) -> None:
        """Return to the earlier actions of signals."""
        signal.set_wakeup_fd(-1)
        for number, action in self._previous:
            signal.signal(number, action)
        self.wakeup.close()
        self._signalled.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        for each in ENDING_SIGNALS:
            signal.signal(each, signal.SIG_DFL)


class EngineServer:
    """An engine that listens for API processes. Made and used on the main thread."""

    def __init__(
        self,
        config: EngineConfig,
        options: ServerOptions,
        progress: Callable[[str, int, int], None],
        build: Builder,
        heartbeat: Heartbeat,
    ) -> None:
        """Build the engine, then listen. Raises `EngineError` and `OSError`.

        progress: called with stage, done and total while the engine is built.
        """
        self._options = options
        with contextlib.ExitStack() as resources:
            resources.callback(options.sock.close)
            engine = build(config, progress)
            gc.collect()
            gc.freeze()  # exempt loaded objects from garbage collection between tokens
            self.info = engine.info
            self.address = Address(*options.sock.getsockname()[:2])
            self._stop = StopSignal()
            resources.callback(self._stop.close)
            listener = Listener(options.sock, engine.info, options.token, options.tls)
            self._connections = Connections(listener=listener, wakeup=self._stop.wakeup)
            resources.callback(self._connections.close)
            self._worker = Worker(self._connections, engine, heartbeat, options.orphan_grace)
            self._resources = resources.pop_all()

    def serve(self) -> None:
        """Serve until a signal, then drain."""
        options = self._options
        if options.tls is None and not self.address.is_loopback:
            log.warning(
                "prompts, answers and the token cross the network of %s without encryption; --tls-cert encrypts them",
                self.address,
            )
        with self._resources, contextlib.suppress(ChannelClosed):  # no connection is left to drain
            while not self._stop.is_set:
                self._worker.turn()
            log.info(
                "the engine ends with its requests, within %g s; another signal ends it now", options.drain_seconds
            )
            self._worker.drain(options.drain_seconds)
            self._connections.hang_up(HANG_UP_SECONDS)


def build_server(
    config: EngineConfig,
    options: ServerOptions,
    progress: Callable[[str, int, int], None],
    heartbeat: Heartbeat | None = None,
) -> EngineServer:
    """Return a server of the engine of a model; see `EngineServer`. heartbeat: None for one that nothing reads."""
    # Imports torch, so only after logging is set up, and never in an API process.
    from engine.build import build_engine

    heartbeat = heartbeat or Heartbeat()
    return EngineServer(config, options, progress, partial(build_engine, heartbeat=heartbeat), heartbeat)
