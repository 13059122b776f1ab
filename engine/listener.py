"""Listener: accepts TCP connections, and admits those with a valid first frame. It never blocks a step.

A connection that is not admitted yet costs one descriptor and at most `MAX_HELLO_BYTES` of memory, whatever it claims.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Collection

from engine.clock import engine_time
from engine.connection import WOULD_BLOCK, Connection
from engine.handshake import RefusalLog, reason_to_refuse
from engine.ipc import HELLO_DECODER, LENGTH_BYTES, MAX_HELLO_BYTES, FrameReader, Hello, Ready, Refused, encode
from engine.network import tune
from engine.types import ModelInfo

log = logging.getLogger("carousel.engine")

BACKLOG = 128  # connections that the system holds until they are accepted
MAX_STRANGERS = 64  # connections without a first frame; beyond it the oldest is closed
MAX_ACCEPTS = 64  # connections accepted between two steps
HELLO_SECONDS = 5.0  # in which the first frame must arrive


class NothingSentError(Exception):
    """A connection was closed without a byte, as those of health checks are, which test whether the port is open."""


class Stranger:
    """An accepted connection without its first frame."""

    def __init__(self, sock: socket.socket, peer: str, expires_at: float) -> None:
        self.socket = sock
        self.peer = peer
        self.expires_at = expires_at
        self._reader = FrameReader(HELLO_DECODER, MAX_HELLO_BYTES)

    def read(self) -> Hello | None:
        """Return the first frame once it is complete. Raises `ValueError` for anything else, `NothingSentError`, and
        `OSError`.
        """
        try:
            data = self.socket.recv(MAX_HELLO_BYTES + LENGTH_BYTES)  # a whole record of TLS
        except WOULD_BLOCK:
            return None
        except (ConnectionResetError, ssl.SSLEOFError):  # how TLS and some health checks close
            data = b""
        if not data and not self._reader.has_partial_frame:
            raise NothingSentError
        if not data:
            raise ValueError("it was closed before its first frame")
        hellos = self._reader.feed(data)
        if len(hellos) > 1 or (hellos and self._reader.has_partial_frame):
            raise ValueError("it sent more than one frame before the answer")
        return hellos[0] if hellos else None


class Listener:
    """Listening socket of an engine, and the connections that have not been admitted."""

    def __init__(
        self,
        sock: socket.socket,
        info: ModelInfo,
        token: str,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """sock: bound. tls: None for connections without encryption."""
        self._socket = sock
        self._info = info
        self._token = token
        self._tls = tls
        self._clock = clock
        self._strangers: list[Stranger] = []  # oldest first
        self._refusals = RefusalLog(clock)
        self._selector: selectors.BaseSelector | None = None

    def open(self, selector: selectors.BaseSelector) -> None:
        """Listen, and register sockets with a selector from now on, each with an object for `admit`."""
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._selector = selector
        selector.register(self._socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        """Stop listening, and close the connections that have not been admitted."""
        for stranger in list(self._strangers):
            self._forget(stranger).close()
        if self._selector is not None:
            self._selector.unregister(self._socket)
            self._selector = None
        self._socket.close()

    @property
    def num_strangers(self) -> int:
        """Return the number of connections that have not been admitted."""
        return len(self._strangers)

    @property
    def seconds_to_expiry(self) -> float | None:
        """Return the seconds until the next connection is refused for its silence; None without any."""
        return max(0.0, self._strangers[0].expires_at - self._clock()) if self._strangers else None

    def admit(self, ready: Collection[object]) -> list[Connection]:
        """Handle what is ready according to the selector. Returns the connections that are admitted, after `Ready`."""
        if self in ready:
            self._accept()
        admitted: list[Connection] = []
        for stranger in [stranger for stranger in self._strangers if stranger in ready]:
            try:
                hello = stranger.read()
            except NothingSentError:
                log.debug("a connection from %s was closed and had sent nothing", stranger.peer)
                self._forget(stranger).close()
                continue
            except (ValueError, OSError) as error:
                self._refuse(stranger, f"its first frame cannot be read: {error}")
                continue
            if hello is None:
                continue
            if reason := reason_to_refuse(hello, self._token, self._info.fingerprint):
                self._refuse(stranger, reason)
                continue
            connection = Connection(self._forget(stranger), hello.process)
            connection.send(Ready(self._info, engine_time()))
            log.info("a connection from %s was admitted, of API process %s", stranger.peer, connection.process)
            admitted.append(connection)
        now = self._clock()
        while self._strangers and self._strangers[0].expires_at <= now:
            self._refuse(self._strangers[0], f"it sent no complete first frame within {HELLO_SECONDS:g} s")
        return admitted

    def _accept(self) -> None:
        assert self._selector is not None
        for _ in range(MAX_ACCEPTS):
            try:
                sock, address = self._socket.accept()
            except OSError:  # none is waiting, or it has gone, or there are too many open files
                return
            try:
                sock.setblocking(False)
                tune(sock)
                if self._tls is not None:
                    # The first reads do the handshake.
                    sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it has gone meanwhile
                sock.close()
                continue
            if len(self._strangers) == MAX_STRANGERS:
                self._refuse(self._strangers[0], f"{MAX_STRANGERS} newer ones have sent no first frame either")
            stranger = Stranger(sock, str(address[0]), self._clock() + HELLO_SECONDS)
            self._strangers.append(stranger)
            self._selector.register(sock, selectors.EVENT_READ, stranger)

    def _refuse(self, stranger: Stranger, reason: str) -> None:
        self._refusals.note(stranger.peer, reason)
        sock = self._forget(stranger)
        with contextlib.suppress(OSError), sock:
            sock.send(encode(Refused(reason)))

    def _forget(self, stranger: Stranger) -> socket.socket:
        assert self._selector is not None
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.socket)
        return stranger.socket
