"""What the API process and the engine process say to each other, and how it looks on the socket.

A frame is a little-endian uint32 length and one msgpack message. Messages are typed; anything else is refused by the
decoder, so nothing that arrives is ever executed or trusted to have a shape. One `Stepped` carries all that a step did.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from typing import Generic, TypeVar

import msgspec

from engine.config import EngineConfig
from engine.types import Event, Load, ModelInfo, Request, Snapshot

MAX_FRAME = 256 << 20  # bytes; a million-token prompt is about 5 MB

READ_AT_ONCE = 16 << 20  # bytes between two steps
TICK = 0.001  # seconds, which a selector rounds up to

_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message to an engine process: what to build."""

    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A new request."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request, or one of its choices."""

    request_id: str
    choice: int | None = None


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Somebody looks at the live view: send snapshots from now on, or stop sending them."""

    on: bool


class Echo(msgspec.Struct, frozen=True, tag="echo"):
    """Asks an idle engine for a sign of progress: its main loop turns once to read this, and so counts a heartbeat.
    There is no answer."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """How far the start has come."""

    what: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded; requests are served."""

    info: ModelInfo


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot be built. One line for people."""

    message: str


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """What one step did."""

    events: tuple[Event, ...]
    load: Load
    snapshot: Snapshot | None = None


ToEngine = Start | Submit | Abort | Watch | Echo
FromEngine = Loading | Ready | Failed | Stepped

M = TypeVar("M")

to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame of {len(body)} bytes exceeds {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Turns a byte stream, cut anywhere, back into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that `data` completes. Raises `ValueError` for a frame that is too long or not of our types."""
        self._buffer += data
        messages: list[M] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes exceeds {MAX_FRAME}")
            end = at + _LENGTH.size + length
            if end > len(self._buffer):
                break
            messages.append(self._decoder.decode(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        if at:
            del self._buffer[:at]
        return messages


class ChannelClosed(Exception):
    """The other side is gone."""


class EngineChannel:
    """The engine's end: never blocks a step. What the socket does not take at once waits in memory, bounded by what the
    running requests can produce; what is not owed to anybody is not sent while something waits (`is_clear`)."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = FrameReader(to_engine)
        self._pending = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        self._socket.close()

    def send(self, message: FromEngine) -> None:
        """Queue one frame and write what the socket takes."""
        self._pending += encode(message)
        self._flush()

    def receive(self, timeout: float | None) -> list[ToEngine]:
        """Messages that are here or come within `timeout` seconds (None: wait for some); less than a millisecond of it
        may be left when there were none. Raises `ChannelClosed`."""
        if timeout is not None:
            ticks = int(timeout / TICK)
            if timeout and not ticks:  # a message is early enough afterwards
                time.sleep(timeout)
            timeout = max(0.0, ticks - 0.5) * TICK  # rounded up it is so many
        while True:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pending else 0)
            self._selector.modify(self._socket, events)
            ready = self._selector.select(timeout)
            self._flush()
            if any(mask & selectors.EVENT_READ for _, mask in ready):
                return self._read()
            if timeout is not None:
                return []

    @property
    def is_clear(self) -> bool:
        """True when everything sent so far is in the socket."""
        return not self._pending

    def _read(self) -> list[ToEngine]:
        """All that has arrived, up to READ_AT_ONCE: a long prompt does not take a step for each socket buffer."""
        messages: list[ToEngine] = []
        taken = 0
        while taken < READ_AT_ONCE:
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionError as error:
                raise ChannelClosed from error
            if not data:
                if messages:
                    break  # the next read says it again
                raise ChannelClosed
            taken += len(data)
            messages += self._reader.feed(data)
        return messages

    def _flush(self) -> None:
        while self._pending:
            try:
                sent = self._socket.send(self._pending)
            except BlockingIOError:
                return
            except ConnectionError as error:
                raise ChannelClosed from error
            del self._pending[:sent]
