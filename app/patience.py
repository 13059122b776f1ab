"""With clients that take little of what is written to them: as long as one takes something it is served, and one that
takes nothing is hung up on. Whatever it is an answer to, over HTTP or a WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from contextlib import suppress

log = logging.getLogger("carousel.connection")

# In which a client's system may acknowledge nothing, the socket being full. A program that reads a byte a second cannot
# be told from one that reads none until half of its own buffer is free, which takes minutes: only that much later is a
# client given up. Until then it costs one piece of its answer, and the answer goes on.
SECONDS = 600.0
LOOK = 0.1  # of that, between two looks at what it takes
INTERNET = (socket.AF_INET, socket.AF_INET6)
ACKNOWLEDGED = 120  # where tcpi_bytes_acked, of 8 bytes, is in what Linux says of a connection (linux/tcp.h)
UNREAD_SECONDS = 60.0  # that the system keeps what nobody takes, also for a connection that is closed


class Patience:
    """With the client of one connection, whose protocol says when its transport is full, and when it is lost."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ours = False  # and not the system's any more
        transport.set_write_buffer_limits(0)  # what a socket does not take says that it is full

    def begin(self) -> None:
        """The socket is full."""
        # The system's patience ends that long after its window was too small for a segment, whatever is taken meanwhile
        # by a reader of few bytes at a time.
        if not self._is_ours:
            self._is_ours = True
            keep_unread(self._socket, 0)
        if self._timer is None:
            self._look(self._taken(), self._loop.time())

    def end(self) -> None:
        """The connection is lost; what the system still has for it is the system's again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_ours:
            keep_unread(self._socket, UNREAD_SECONDS)

    def _look(self, before: int, since: float) -> None:
        """before: what was taken, to which nothing has come `since`."""
        taken, now = self._taken(), self._loop.time()
        self._timer = None
        if self._transport.get_write_buffer_size() == 0:
            return
        if taken > before:
            since = now
        if now - since >= SECONDS:
            log.info("a reader took nothing for %g s and is given up", SECONDS)
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(LOOK * SECONDS, self._look, taken, since)

    def _taken(self) -> int:
        """Bytes; only what it grows by means something."""
        # Ours may take 64 KB for a client that takes a few, and nothing more until those are gone.
        if sys.platform == "linux" and self._socket.family in INTERNET:
            with suppress(OSError, struct.error):  # it is gone, or too old to say
                info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKNOWLEDGED + 8)
                return int(struct.unpack_from("=Q", info, ACKNOWLEDGED)[0])
        return -self._transport.get_write_buffer_size()


def keep_unread(connection: socket.socket, seconds: float) -> None:
    """For how long the system keeps what is written to a connection, or to those that a listening socket takes, and not
    taken; 0: for as long as its peer answers."""
    if hasattr(socket, "TCP_USER_TIMEOUT") and connection.family in INTERNET:
        with suppress(OSError):  # it is gone
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
