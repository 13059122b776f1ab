"""Channel: frames of an engine on a stream socket, of whatever kind. Independent of processes and requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from app.engine_client.transport import MessageHandler
from engine.ipc import API_DECODER, Failed, FrameReader, FromEngine, ToEngine, encode

log = logging.getLogger("carousel.engine_process")

# Events handled before the event loop runs other callbacks, which takes a millisecond or two.
MAX_EVENTS_PER_TURN = 64

ENDED_MESSAGE = "the engine process ended unexpectedly"


class Channel(asyncio.Protocol):
    """API's end of a stream socket: handles messages in order, a few events per turn. While it lags behind, data stays
    in the socket, so that the engine notices and sends only necessary messages.
    """

    def __init__(
        self, on_message: MessageHandler, on_loss: Callable[[str], None], ended_message: str = ENDED_MESSAGE
    ) -> None:
        """ended_message: reason of the loss if the other end closes the socket."""
        self._receive = on_message
        self._ended_message = ended_message
        self._on_loss = on_loss
        self._frames = FrameReader(API_DECODER)
        self._messages: deque[FromEngine] = deque()
        self._handling: Iterator[None] | None = None  # set while messages are being handled
        self._transport: asyncio.Transport | None = None
        self._has_ended = False  # the engine's end is closed
        self._is_over = False  # no further message is handled, and no loss reported

    def send(self, messages: Iterable[ToEngine]) -> None:
        """Send each message as a frame, in one write; do nothing without a connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(map(encode, messages)))

    def close(self) -> None:
        """Close the connection: no further message is handled, not even the rest of the current one."""
        self._is_over = True
        self._messages.clear()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            self._messages.extend(self._frames.feed(data))
        except ValueError as error:
            self.give_up(f"the engine sent a frame that cannot be read: {error}")
            return
        if self._handling is None:
            self._handling = self._handle_messages()
            self._continue()

    def connection_lost(self, error: Exception | None) -> None:
        self._has_ended = True
        if self._handling is None:
            self.give_up(self._ended_message)

    def give_up(self, why: str) -> None:
        """Close the connection and report the reason, unless it is closed already."""
        if not self._is_over:
            self.close()
            self._on_loss(why)

    def _handle_messages(self) -> Iterator[None]:
        while self._messages:
            try:
                message = self._messages.popleft()
                if isinstance(message, Failed):
                    self.give_up(message.message)
                    return
                for _ in self._receive(message):
                    yield
                    if self._is_over:
                        return
            except Exception:  # an exception in a watcher must not end the channel, which serves all requests
                log.exception("a message from the engine could not be handled")

    def _continue(self) -> None:
        assert self._handling is not None and self._transport is not None
        for count, _ in enumerate(self._handling, 1):
            if count == MAX_EVENTS_PER_TURN:
                if self._transport.is_reading():
                    self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._continue)
                return
        self._handling = None
        if not (self._transport.is_closing() or self._transport.is_reading()):
            self._transport.resume_reading()
        if self._has_ended:
            self.give_up(self._ended_message)
