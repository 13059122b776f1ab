"""Messages between the API process and the engine process, and their encoding on the socket.

A frame is a little-endian uint32 length and one msgpack message. Messages are typed and the decoder refuses anything
else, so received data is never executed and always has a known shape. One `StepResult` carries all results of a step.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from engine.clock import EngineTime
from engine.config import EngineConfig
from engine.load import EngineLoad, Snapshot
from engine.prefixes import PrefixChanges
from engine.tenant_uses import TenantUse, UseReport
from engine.types import Event, ModelInfo, Request, ServiceClass, Vocabulary

PROTOCOL_VERSION = 6  # of the messages over TCP; both ends have the same
MAX_FRAME_BYTES = 256 << 20  # a million-token prompt is about 5 MB
MAX_HELLO_BYTES = 4 << 10  # of the first frame over TCP, from an unknown sender

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size  # before each message


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
    """End a request, or one of its choices. moves: it goes on in another engine, and is not adopted from this one."""

    request_id: str
    choice: int | None = None
    moves: bool = False


class Change(msgspec.Struct, frozen=True, tag="change"):
    """Pause or resume a request, and move it to a service class. Both are the state that it has from now on."""

    request_id: str
    is_paused: bool
    service_class: ServiceClass


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Keep the pages of a choice that asks for a tool, until the tool's result comes back."""

    request_id: str
    choice: int


class WatchSnapshots(msgspec.Struct, frozen=True, tag="watch"):
    """Start or stop sending snapshots for the live view."""

    is_enabled: bool


class WatchPrefixes(msgspec.Struct, frozen=True, tag="watch_prefixes"):
    """Start to send the marks of the prefix cache: all of them once, then changes with the results of steps."""


class PostUse(msgspec.Struct, frozen=True, tag="use"):
    """Use of limits by tenant in this API process, for the others: at most `MAX_REPORTED_TENANTS`."""

    uses: tuple[TenantUse, ...]


class EchoRequest(msgspec.Struct, frozen=True, tag="echo"):
    """Request a sign of progress from an idle engine.

    The engine's main loop turns once to read this message. It thereby counts a heartbeat, and sends the results of no
    step, unless it has just sent others.
    """


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message over TCP. The next ones follow after `Ready`.

    version: of the sender's protocol. fingerprint: `ModelInfo.fingerprint` that the engine must have; empty: any.
    process: unique name of the API process.
    """

    version: int
    token: str
    fingerprint: str
    process: str


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Take over a request that has lost its connection, or ended a short while ago. The answer is `Adopted` or
    `NotFound`.

    name: ID or alias of the request. cache_salt: of the request; one with another salt is not found, so that nothing is
    learnt about the requests of other owners.
    """

    name: str
    cache_salt: str


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Let no process adopt a request that has ended: its owner has deleted it."""

    request_id: str


class ReleaseOrphans(msgspec.Struct, frozen=True, tag="release"):
    """End the requests that were lost by earlier connections of this API process and not submitted again."""


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


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The connection is not admitted, and is closed."""

    reason: str


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """The engine will end: it expects no new requests, and goes on with those it has for some seconds."""


class Adopted(msgspec.Struct, frozen=True, tag="adopted"):
    """A request that belongs to this connection from now on, or has ended. Its moments are on the engine's clock.

    name: by which it was requested. request: with its output before the events that follow: `output_so_far` and its
    order, `sent`. With log-probabilities there is no `output_so_far`, as it is computed again: the events that follow
    begin with those in `sent`.
    """

    name: str
    request: EngineRequest


class NotFound(msgspec.Struct, frozen=True, tag="not_found"):
    """There is no such request that can be adopted. is_held: another API process has it, and is connected."""

    name: str
    is_held: bool = False


class StepResult(msgspec.Struct, frozen=True, tag="step"):
    """Results of one step for one connection, or a sign of life without events.

    Moments in events are on the engine's clock; clock: when it was sent. heartbeat: the engine's progress count.
    connections: of API processes that the engine serves. prefixes: changes of its prefix cache. trial: ID of the
    request, of any connection, that the engine computes alone from now on; empty: none. uses: of limits in the other
    API processes.
    """

    events: tuple[Event, ...]
    load: EngineLoad
    clock: EngineTime
    heartbeat: int = 0
    snapshot: Snapshot | None = None
    connections: int = 1
    prefixes: PrefixChanges | None = None
    trial: str = ""
    uses: UseReport | None = None


ToEngine = (
    Start
    | Hello
    | UseVocabulary
    | Submit
    | Abort
    | Change
    | Keep
    | WatchSnapshots
    | WatchPrefixes
    | PostUse
    | EchoRequest
    | Adopt
    | Forget
    | ReleaseOrphans
)
FromEngine = LoadProgress | Ready | Failed | Refused | Draining | Adopted | NotFound | StepResult

MessageT = TypeVar("MessageT")

ENGINE_DECODER: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
HELLO_DECODER: msgspec.msgpack.Decoder[Hello] = msgspec.msgpack.Decoder(Hello)
API_DECODER: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return one frame with `message`."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frames must be at most {MAX_FRAME_BYTES} bytes, got {len(body)}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[MessageT]):
    """Decoder of a byte stream, split at arbitrary positions, into messages.

    Its memory grows with the bytes that have arrived, not with the length that a frame claims.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT], max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def has_partial_frame(self) -> bool:
        """Return whether a frame has begun that is not complete."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[MessageT]:
        """Return the messages that `data` completes.

        Raises `ValueError` for a frame that is too long, and msgspec's subclass of it for an unknown message.
        """
        self._buffer += data
        messages: list[MessageT] = []
        offset = 0
        while len(self._buffer) - offset >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, offset)
            if length > self._max_bytes:
                raise ValueError(f"frames must be at most {self._max_bytes} bytes, got {length}")
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
