"""Connection: the engine's end of a stream socket to one API process, which never blocks a step."""

from __future__ import annotations

import contextlib
import socket
import ssl

from engine.ipc import ENGINE_DECODER, FrameReader, FromEngine, ToEngine, encode
from engine.types import Event

MAX_READ_BYTES = 16 << 20  # read between two steps
# Unread data of one connection beyond which it is closed. Many seconds of results, which an API process that still
# works has read by then.
MAX_UNREAD_BYTES = 64 << 20
RECEIVE_BYTES = 1 << 20  # of one system call

# The socket takes or has no more data now. TLS reports it by exceptions of its own.
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """Frames to and from one API process.

    Data that the socket does not take at once waits in memory. Optional messages are not sent while data is waiting
    (`is_drained`). A connection that fails in any way is only marked as lost (`loss`); its owner closes it.
    """

    def __init__(self, sock: socket.socket, process: str = "") -> None:
        """process: name of the API process, for requests that outlive this connection."""
        sock.setblocking(False)
        self.socket = sock
        self.process = process
        self.loss = ""  # reason for which it is lost; empty while it works
        self.events: list[Event] = []  # of its requests, since the last results of a step
        self.is_watching = False  # receives snapshots
        self.knows_prefixes: bool | None = None  # was sent the marks of the prefix cache; None: did not ask for them
        self.has_unread = False  # the last read ended at its limit
        self._reader = FrameReader(ENGINE_DECODER)
        self._pending = bytearray()
        self._has_finished = False  # nothing more is sent

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def send(self, message: FromEngine) -> None:
        """Queue one frame and write as much as the socket takes; do nothing on a lost connection."""
        if self.loss:
            return
        if len(self._pending) > MAX_UNREAD_BYTES:
            self.loss = f"more than {MAX_UNREAD_BYTES >> 20} MiB are unread"
            return
        self._pending += encode(message)
        self.flush()

    def flush(self) -> None:
        """Write as much of the queued data as the socket takes."""
        while self._pending and not self.loss:
            try:
                sent = self.socket.send(self._pending)
            except WOULD_BLOCK:
                return
            except OSError as error:
                self.loss = f"it failed: {error}"
                return
            del self._pending[:sent]

    def read(self) -> list[ToEngine]:
        """Return the messages that have arrived, from at most `MAX_READ_BYTES`.

        A long prompt would otherwise take a step for each socket buffer.
        """
        messages: list[ToEngine] = []
        taken = 0
        self.has_unread = False
        while not self.loss:
            if taken >= MAX_READ_BYTES:
                self.has_unread = True  # TLS may hold data that a selector does not see
                break
            try:
                data = self.socket.recv(RECEIVE_BYTES)
                taken += len(data)
                if not self._has_finished:
                    messages += self._reader.feed(data)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self.loss = f"it failed: {error}"
            except ValueError as error:
                self.loss = f"it sent a frame that cannot be read: {error}"
            else:
                if not data:
                    self.loss = "the other side has closed it"
        return messages

    def finish_sending(self) -> None:
        """Send the end of the connection. Later calls do nothing, and data that still arrives is discarded."""
        if not self._has_finished:
            self._has_finished = True
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    @property
    def is_drained(self) -> bool:
        """Return whether the socket has taken everything sent so far."""
        return not self._pending
