"""EngineProcess: transport to an engine that is a child process, over a socket pair. Independent of requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator

from app.child_environment import module_environment
from app.engine_client.channel import Channel
from app.engine_client.transport import MessageHandler
from engine.config import EngineConfig
from engine.heartbeat import Heartbeat
from engine.ipc import Start, ToEngine
from engine.worker import Builder, serve

# Iterations for which an idle OpenMP thread of the engine spins before it sleeps, if torch computes on a CPU. Without
# spinning, small models become slower, because their operations follow each other within microseconds. With unlimited
# spinning, the threads take the cores that this process needs.
ENGINE_ENVIRONMENT_DEFAULTS = {"GOMP_SPINCOUNT": "50000"}

KILL_WAIT_SECONDS = 10.0  # to wait for a killed process


class EngineProcess:
    """`Transport` to an engine in its own process; with `build`, on a thread of this process (for tests)."""

    replacement = "another one is started"
    shares_clock = True  # all processes of a machine have one monotonic clock

    def __init__(
        self,
        on_message: MessageHandler,
        on_loss: Callable[[str], None],
        build: Builder | None = None,
        logs: tuple[str, str] = ("info", "text"),
        cpus: Collection[int] = (),
    ) -> None:
        """cpus: cores to which the process is bound; empty: those of this process."""
        self.process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_started = False
        self._build = build
        self._logs = logs
        self._cpus = cpus
        self._channel = Channel(on_message, on_loss)
        self.heartbeat = Heartbeat()

    async def start(self, config: EngineConfig) -> None:
        """Begin to load. Returns at once. Raises `OSError` if no process can be started."""
        ours, theirs = socket.socketpair()
        if self._build is None:
            with theirs:
                try:
                    with bound_to(self._cpus):
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

    def reject(self, why: str) -> bool:
        """Return that no other process replaces the engine."""
        return False

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


@contextlib.contextmanager
def bound_to(cpus: Collection[int]) -> Iterator[None]:
    """Bind this thread to `cpus` meanwhile, if any are given: a new process inherits it before it runs, and libraries
    read the number of cores when they are loaded.
    """
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
