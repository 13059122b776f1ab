"""EngineProcess: one engine from its start to its end, and the channel to it. Independent of requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from app.child_environment import module_environment
from engine.config import EngineConfig
from engine.heartbeat import Heartbeat
from engine.ipc import API_DECODER, Failed, FrameReader, FromEngine, Start, ToEngine, encode
from engine.worker import Builder, serve

log = logging.getLogger("carousel.engine_process")

# Iterations for which an idle OpenMP thread of the engine spins before it sleeps, if torch computes on a CPU. Without
# spinning, small models become slower, because their operations follow each other within microseconds. With unlimited
# spinning, the threads take the cores that this process needs.
ENGINE_ENVIRONMENT_DEFAULTS = {"GOMP_SPINCOUNT": "50000"}

# Events handled before the event loop runs other callbacks, which takes a millisecond or two.
MAX_EVENTS_PER_TURN = 64

ENDED_MESSAGE = "the engine process ended unexpectedly"
KILL_WAIT_SECONDS = 10.0  # to wait for a killed process


class EngineProcess:
    """Engine in its own process; with `build`, on a thread of this process (for tests).

    on_message: handles a message and yields after each of its events. on_loss: called once with the reason when nothing
    more will arrive: the engine could not be built, or it has ended and all its messages were handled, or it was given
    up. It is not called after `close`.
    """

    shares_clock = True  # all processes of a machine have one monotonic clock

    def __init__(
        self,
        on_message: Callable[[FromEngine], Iterator[None]],
        on_loss: Callable[[str], None],
        build: Builder | None = None,
        logs: tuple[str, str] = ("info", "text"),
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_started = False
        self._build = build
        self._logs = logs
        self._channel = _Channel(on_message, on_loss)
        self.heartbeat = Heartbeat()

    async def start(self, config: EngineConfig) -> None:
        """Begin to load. Returns at once. Raises `OSError` if no process can be started."""
        ours, theirs = socket.socketpair()
        if self._build is None:
            with theirs:
                try:
                    self.process = _spawn(theirs, self.heartbeat, self._logs)
                except OSError:
                    ours.close()
                    raise
        else:
            self._thread = threading.Thread(
                target=serve, args=(theirs, self._build, self.heartbeat), name="engine", daemon=True
            )
            self._thread.start()
        await asyncio.get_running_loop().create_connection(lambda: self._channel, sock=ours)
        self._channel.send((Start(config),))
        self._is_started = True

    def send(self, *messages: ToEngine) -> None:
        """Send messages in one write; do nothing without an engine. (Writing to a dead engine would lose its messages
        that have not been read yet.)
        """
        if self._is_started:  # nothing may precede the first message
            self._channel.send(messages)

    def abandon(self, why: str) -> None:
        """Close the channel of a running but unusable engine and report its loss."""
        self._channel.give_up(why)

    async def close(self, grace_seconds: float) -> None:
        """Close the channel and wait for the engine to end; kill its process after `grace_seconds`."""
        self._channel.close()
        self.heartbeat.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, grace_seconds)
        if self.process is not None:
            try:
                await asyncio.to_thread(self.process.wait, grace_seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may block the process indefinitely
                    await asyncio.to_thread(self.process.wait, KILL_WAIT_SECONDS)

    @property
    def heartbeat_count(self) -> int:
        """Return the engine's progress, which it counts in shared memory."""
        return self.heartbeat.count

    @property
    def exit_description(self) -> str:
        """Return how the process ended, for the log; empty if it has not ended or there is none."""
        status = self.process.returncode if self.process is not None else None
        if status is None:
            return ""
        names = {one.value: one.name for one in signal.Signals}
        return f"with status {status}" if status >= 0 else f"by {names.get(-status, f'signal {-status}')}"


class _Channel(asyncio.Protocol):
    """API's end of the socket: handles messages in order, a few events per turn. While it lags behind, data stays in
    the socket, so that the engine notices and sends only necessary messages.
    """

    def __init__(self, on_message: Callable[[FromEngine], Iterator[None]], on_loss: Callable[[str], None]) -> None:
        self._receive = on_message
        self._on_loss = on_loss
        self._frames = FrameReader(API_DECODER)
        self._messages: deque[FromEngine] = deque()
        self._handling: Iterator[None] | None = None  # set while messages are being handled
        self._transport: asyncio.Transport | None = None
        self._has_ended = False  # the engine's end is closed
        self._is_over = False  # no further message is handled, and no loss reported

    def send(self, messages: Iterable[ToEngine]) -> None:
        """Send each message as a frame, in one write; do nothing without a connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(map(encode, messages)))

    def close(self) -> None:
        """Close the connection: no further message is handled, not even the rest of the current one."""
        self._is_over = True
        self._messages.clear()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            self._messages.extend(self._frames.feed(data))
        except ValueError as error:
            self.give_up(f"the engine sent a frame that cannot be read: {error}")
            return
        if self._handling is None:
            self._handling = self._handle_messages()
            self._continue()

    def connection_lost(self, error: Exception | None) -> None:
        self._has_ended = True
        if self._handling is None:
            self.give_up(ENDED_MESSAGE)

    def give_up(self, why: str) -> None:
        """Close the connection and report the reason, unless it is closed already."""
        if not self._is_over:
            self.close()
            self._on_loss(why)

    def _handle_messages(self) -> Iterator[None]:
        while self._messages:
            try:
                message = self._messages.popleft()
                if isinstance(message, Failed):
                    self.give_up(message.message)
                    return
                for _ in self._receive(message):
                    yield
                    if self._is_over:
                        return
            except Exception:  # an exception in a watcher must not end the channel, which serves all requests
                log.exception("a message from the engine could not be handled")

    def _continue(self) -> None:
        assert self._handling is not None and self._transport is not None
        for count, _ in enumerate(self._handling, 1):
            if count == MAX_EVENTS_PER_TURN:
                if self._transport.is_reading():
                    self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._continue)
                return
        self._handling = None
        if not (self._transport.is_closing() or self._transport.is_reading()):
            self._transport.resume_reading()
        if self._has_ended:
            self.give_up(ENDED_MESSAGE)


def _spawn(sock: socket.socket, heartbeat: Heartbeat, logs: tuple[str, str]) -> subprocess.Popen[bytes]:
    """Start the engine in a new interpreter, with the same import paths as this one from any folder."""
    environment = {**ENGINE_ENVIRONMENT_DEFAULTS, **module_environment()}
    return subprocess.Popen(
        [sys.executable, "-m", "engine.worker", str(sock.fileno()), str(heartbeat.fileno()), *logs, str(os.getpid())],
        pass_fds=[sock.fileno(), heartbeat.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        # Ctrl-C in the terminal is handled by this process; the engine ends when its channel closes
        start_new_session=True,
    )
