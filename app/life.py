"""Life: one engine from its start to its end, and the channel to it. Knows nothing of requests."""

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
from pathlib import Path
from typing import cast

import engine
from app.child_environment import child_environment
from engine.config import EngineConfig
from engine.frames import Failed, FrameReader, FromEngine, Start, ToEngine, encode, from_engine
from engine.heartbeat import Heartbeat
from engine.worker import Builder, serve

log = logging.getLogger("carousel.life")

# How long an idle OpenMP thread of the engine spins before it sleeps, where torch computes on a CPU. Not at all slows
# down small models whose operations follow each other within microseconds; as long as it likes takes the cores that
# this process needs.
ENGINE_ENVIRONMENT = {"GOMP_SPINCOUNT": "50000"}

# Events handed out before the event loop has its turn: for a millisecond or two nobody else is heard.
EVENTS_A_TURN = 64

ENDED = "the engine process ended unexpectedly"
HELD = 10.0  # seconds that a killed process is waited for


class Life:
    """An engine in a process of its own; with `build`, on a thread of this one (tests).

    hear: acts on a message, and yields after each of its events. lose: told why, once, when nothing more will come: it
    could not be built; it is gone, and all that it had said was acted on; it was given up. Not told of `end`.
    """

    def __init__(
        self,
        hear: Callable[[FromEngine], Iterator[None]],
        lose: Callable[[str], None],
        build: Builder | None = None,
        logs: tuple[str, str] = ("info", "text"),
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_started = False
        self._build = build
        self._logs = logs
        self._channel = _Channel(hear, lose)
        self.heartbeat = Heartbeat()

    async def start(self, config: EngineConfig) -> None:
        """Begin to load. Returns at once."""
        ours, theirs = socket.socketpair()
        if self._build is None:
            self.process = _spawn(theirs, self.heartbeat, self._logs)
            theirs.close()
        else:
            self._thread = threading.Thread(
                target=serve, args=(theirs, self._build, self.heartbeat), name="engine", daemon=True
            )
            self._thread.start()
        await asyncio.get_running_loop().create_connection(lambda: self._channel, sock=ours)
        self._channel.send((Start(config),))
        self._is_started = True

    def send(self, *messages: ToEngine) -> None:
        """In one piece; nothing, when nobody is there. (To write to an engine that is dead is to lose what it had said
        and was not read yet.)"""
        if self._is_started:  # nothing goes before the first message
            self._channel.send(messages)

    def give_up(self, why: str) -> None:
        """It is there, and of no use: hang up, and have that told."""
        self._channel.give_up(why)

    async def end(self, patience: float) -> None:
        """Hang up, and wait until it is gone; for `patience` seconds of its own accord."""
        self._channel.close()
        self.heartbeat.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, patience)
        if self.process is not None:
            try:
                await asyncio.to_thread(self.process.wait, patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever
                    await asyncio.to_thread(self.process.wait, HELD)

    @property
    def ending(self) -> str:
        """How its process ended, for the log; empty where it did not, or never was."""
        status = self.process.returncode if self.process is not None else None
        if status is None:
            return ""
        names = {one.value: one.name for one in signal.Signals}
        return f"with status {status}" if status >= 0 else f"by {names.get(-status, f'signal {-status}')}"


class _Channel(asyncio.Protocol):
    """The API's end of the socket: messages in order, a few events a turn. What comes while it is behind stays in the
    socket, so the engine notices and sends nothing that is not owed to anybody.
    """

    def __init__(self, hear: Callable[[FromEngine], Iterator[None]], lose: Callable[[str], None]) -> None:
        self._hear = hear
        self._lose = lose
        self._frames = FrameReader(from_engine)
        self._messages: deque[FromEngine] = deque()
        self._acting: Iterator[None] | None = None  # while it is behind
        self._transport: asyncio.Transport | None = None
        self._has_ended = False  # over there
        self._is_over = False  # nothing more is heard, and nobody told

    def send(self, messages: Iterable[ToEngine]) -> None:
        """A frame each, in one piece; nothing, when nobody is there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(map(encode, messages)))

    def close(self) -> None:
        """Hang up: nothing more is heard, not even the rest of a message that is being acted on."""
        self._is_over = True
        self._messages.clear()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes

    def data_received(self, data: bytes) -> None:
        try:
            self._messages.extend(self._frames.feed(data))
        except ValueError as error:
            self.give_up(f"the engine sent a frame that cannot be read: {error}")
            return
        if self._acting is None:
            self._acting = self._act()
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._has_ended = True
        if self._acting is None:
            self.give_up(ENDED)

    def give_up(self, why: str) -> None:
        """Hang up, and say why; nothing where that was done."""
        if not self._is_over:
            self.close()
            self._lose(why)

    def _act(self) -> Iterator[None]:
        while self._messages:
            try:
                message = self._messages.popleft()
                if isinstance(message, Failed):
                    self.give_up(message.message)
                    return
                for _ in self._hear(message):
                    yield
                    if self._is_over:
                        return
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
            self.give_up(ENDED)


def _spawn(sock: socket.socket, heartbeat: Heartbeat, logs: tuple[str, str]) -> subprocess.Popen[bytes]:
    """The engine as a fresh interpreter. It finds the same packages as this one, wherever it was started."""
    path = str(Path(engine.__file__).resolve().parent.parent)
    paths = [path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**ENGINE_ENVIRONMENT, **child_environment(), "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-m", "engine.worker", str(sock.fileno()), str(heartbeat.fileno()), *logs],
        pass_fds=[sock.fileno(), heartbeat.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal is ours to handle; the engine ends when its channel closes
    )
