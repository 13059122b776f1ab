"""Acceptor: accepts the connections of a listening socket, several in one turn of the event loop.

libuv accepts one connection a turn. While a few hundred arrive at once and turns are long, a health check behind them
waits for as many turns.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

MAX_PER_TURN = 16  # connections; each takes about 0.2 ms until its first bytes are read
RETRY_SECONDS = 0.5  # until connections are accepted again, when the system has no descriptor or memory for another one

log = logging.getLogger("carousel")


class Acceptor:
    """Server of the event loop, as far as uvicorn uses one. Must be created while the loop runs."""

    def __init__(self, sock: socket.socket, make_protocol: Callable[[], asyncio.Protocol], backlog: int) -> None:
        """sock: bound socket, which listens from now on and is closed by its owner."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._make_protocol = make_protocol
        self._starting: set[asyncio.Task[object]] = set()  # tasks of connections without a transport
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(backlog)
        self._is_reading = True
        self._loop.add_reader(sock, self.accept)

    def close(self) -> None:
        """Accept no more connections. May be called twice, also after the socket was closed."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._stop_reading()

    @property
    def is_starting(self) -> bool:
        """Return whether a connection was accepted and has no transport yet."""
        return bool(self._starting)

    async def wait_closed(self) -> None:
        """Return at once: connections outlive the acceptor."""

    def accept(self) -> None:
        """Accept the connections that wait, up to a limit. Called by the loop."""
        for _ in range(MAX_PER_TURN):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._make_protocol, connection))
            self._starting.add(task)
            task.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[object]) -> None:
        self._starting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a connection was accepted and lost: %s", error)

    def _pause(self, error: OSError) -> None:
        """Leave connections in the backlog for a while."""
        log.warning("no connection can be accepted: %s", error.strerror)
        self._stop_reading()
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self._is_reading = True
        self._loop.add_reader(self._sock, self.accept)

    def _stop_reading(self) -> None:
        if self._is_reading:  # a closed socket has no descriptor that could be removed again
            self._is_reading = False
            self._loop.remove_reader(self._sock)
