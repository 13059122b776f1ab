"""Messages between the API process and the engine process, and their encoding on the socket.

A frame is a little-endian uint32 length and one msgpack message. Messages are typed and the decoder refuses anything
else, so received data is never executed and always has a known shape. One `StepResult` carries all results of a step.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from engine.clock import EngineTime
from engine.config import EngineConfig
from engine.types import EngineLoad, Event, ModelInfo, Request, Snapshot, Vocabulary

MAX_FRAME_BYTES = 256 << 20  # a million-token prompt is about 5 MB

MAX_READ_BYTES = 16 << 20  # read between two steps
SELECTOR_TICK_SECONDS = 0.001  # a selector rounds its timeout up to a multiple of this

_LENGTH = struct.Struct("<I")


if TYPE_CHECKING:  # written out, because mypy 2.4 fails on a NewType of a struct

    class EngineRequest(Request, frozen=True, kw_only=True):
        """Request with moments on the engine's clock. It is a plain `Request` at runtime."""

else:
    EngineRequest = Request


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First message to an engine process, with its configuration."""

    config: EngineConfig


class UseVocabulary(msgspec.Struct, frozen=True, tag="vocabulary"):
    """Tokens of the model, sent before the first request with a constraint."""

    vocabulary: Vocabulary


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A new request."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request, or one of its choices."""

    request_id: str
    choice: int | None = None


class WatchSnapshots(msgspec.Struct, frozen=True, tag="watch"):
    """Start or stop sending snapshots for the live view."""

    is_enabled: bool


class EchoRequest(msgspec.Struct, frozen=True, tag="echo"):
    """Request a sign of progress from an idle engine.

    The engine's main loop turns once to read this message, and thereby counts a heartbeat. There is no answer.
    """


class LoadProgress(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of the startup."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded and requests are served. clock: when it was sent."""

    info: ModelInfo
    clock: EngineTime


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine cannot be built; `message` is one line for the operator."""

    message: str


class StepResult(msgspec.Struct, frozen=True, tag="step"):
    """Results of one step. Moments in events are on the engine's clock; clock: when it was sent."""

    events: tuple[Event, ...]
    load: EngineLoad
    clock: EngineTime
    snapshot: Snapshot | None = None


ToEngine = Start | UseVocabulary | Submit | Abort | WatchSnapshots | EchoRequest
FromEngine = LoadProgress | Ready | Failed | StepResult

MessageT = TypeVar("MessageT")

ENGINE_DECODER: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
API_DECODER: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return one frame with `message`."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frames must be at most {MAX_FRAME_BYTES} bytes, got {len(body)}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[MessageT]):
    """Decoder of a byte stream, split at arbitrary positions, into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """Return the messages that `data` completes.

        Raises `ValueError` for a frame that is too long, and msgspec's subclass of it for an unknown message.
        """
        self._buffer += data
        messages: list[MessageT] = []
        offset = 0
        while len(self._buffer) - offset >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, offset)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frames must be at most {MAX_FRAME_BYTES} bytes, got {length}")
            end = offset + _LENGTH.size + length
            if end > len(self._buffer):
                break
            messages.append(self._decoder.decode(memoryview(self._buffer)[offset + _LENGTH.size : end]))
            offset = end
        if offset:
            del self._buffer[:offset]
        return messages


class ChannelClosed(Exception):
    """The other side has closed the channel."""


class EngineChannel:
    """The engine's end of the channel, which never blocks a step.

    Data that the socket does not take at once waits in memory, bounded by the output of the running requests. Optional
    messages are not sent while data is waiting (`is_drained`).
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = FrameReader(ENGINE_DECODER)
        self._pending = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)

    def close(self) -> None:
        """Close the channel."""
        self._selector.close()
        self._socket.close()

    def send(self, message: FromEngine) -> None:
        """Queue one frame and write as much as the socket takes."""
        self._pending += encode(message)
        self._flush()

    def receive(self, timeout: float | None) -> list[ToEngine]:
        """Return messages that have arrived or arrive within `timeout` seconds (None: wait for at least one).

        May return nothing up to a millisecond before the timeout. Raises `ChannelClosed`.
        """
        if timeout is not None:
            ticks = int(timeout / SELECTOR_TICK_SECONDS)
            if timeout and not ticks:  # a message that arrives meanwhile is read below, early enough
                time.sleep(timeout)
            timeout = max(0.0, ticks - 0.5) * SELECTOR_TICK_SECONDS  # the selector rounds it up to `ticks`
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
    def is_drained(self) -> bool:
        """Return whether the socket has taken everything sent so far."""
        return not self._pending

    def _read(self) -> list[ToEngine]:
        """Read everything that has arrived, up to MAX_READ_BYTES.

        A long prompt would otherwise take a step for each socket buffer.
        """
        messages: list[ToEngine] = []
        taken = 0
        while taken < MAX_READ_BYTES:
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionError as error:
                raise ChannelClosed from error
            if not data:
                if messages:
                    break  # the next read returns it again
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
