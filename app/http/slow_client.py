"""Guard against slow clients, over HTTP or a WebSocket: a client that accepts some of its data is served, and one that
accepts nothing for a long time is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from contextlib import suppress

log = logging.getLogger("carousel.connection")

# Time for which a client's system may acknowledge nothing while the socket is full. A program that reads one byte per
# second looks like one that reads nothing until half of its buffer is free, which takes minutes, so a client is given
# up only much later. Until then it costs one piece of its answer, and the answer continues.
MAX_STALL_SECONDS = 600.0
CHECK_SHARE = 0.1  # of that time, between two checks of acknowledged data
IP_FAMILIES = (socket.AF_INET, socket.AF_INET6)
BYTES_ACKED_OFFSET = 120  # offset of the 8 bytes of tcpi_bytes_acked in Linux's TCP_INFO (linux/tcp.h)
TCP_USER_TIMEOUT_SECONDS = 60.0  # for which the system keeps unacknowledged data, also of a closed connection


class SlowClientGuard:
    """Guard of one connection. The protocol calls `begin` when its transport is full, and `end` when it is lost."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_active = False  # this guard, not the system, limits the time without acknowledged data
        transport.set_write_buffer_limits(0)  # so that any data a socket does not accept marks it as full

    def begin(self) -> None:
        """Start checking, as the socket is full."""
        # The system's timeout starts when its window is too small for a segment, even if a reader of few bytes at a
        # time keeps reading.
        if not self._is_active:
            self._is_active = True
            set_tcp_user_timeout(self._socket, 0)
        if self._timer is None:
            self._check(self._accepted(), self._loop.time())

    def end(self) -> None:
        """Stop checking; the system's timeout applies again to data that it still holds."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_active:
            set_tcp_user_timeout(self._socket, TCP_USER_TIMEOUT_SECONDS)

    def _check(self, before: int, since: float) -> None:
        """before: amount accepted at the previous check; `since`: time of the last progress."""
        accepted, now = self._accepted(), self._loop.time()
        self._timer = None
        if self._transport.get_write_buffer_size() == 0:
            return
        if accepted > before:
            since = now
        if now - since >= MAX_STALL_SECONDS:
            log.info("The connection is closed because its client read nothing for %g s.", MAX_STALL_SECONDS)
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(CHECK_SHARE * MAX_STALL_SECONDS, self._check, accepted, since)

    def _accepted(self) -> int:
        """Return a number that grows with accepted bytes; only differences are meaningful."""
        # The system may accept 64 KB for a client that reads a few bytes, and nothing more until those are sent.
        if sys.platform == "linux" and self._socket.family in IP_FAMILIES:
            with suppress(OSError, struct.error):  # the socket is closed, or the kernel is too old
                info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED_OFFSET + 8)
                return int(struct.unpack_from("=Q", info, BYTES_ACKED_OFFSET)[0])
        return -self._transport.get_write_buffer_size()


def set_tcp_user_timeout(connection: socket.socket, seconds: float) -> None:
    """Set the time for which the system keeps data that a connection's peer does not acknowledge; for a listening
    socket, that of the connections that it accepts. 0: as long as the peer answers.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT") and connection.family in IP_FAMILIES:
        with suppress(OSError):  # the socket is closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
