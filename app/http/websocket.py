"""uvicorn's WebSocket protocol with these changes: bounded work per turn of the event loop, a limit on frames without a
message, close frames that reach a client which is still sending, a limit on the time without a read by the client, and
writes without a coroutine per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from app.http.message_memory import MessageMemory
from app.http.slow_client import SlowClientGuard
from app.http.tunnel import RAW_CONNECTION, RawConnection
from app.observe.request_log import client_request_id, new_request_id
from app.streams.tail import DIRECT_WRITE

MAX_PARSE_BYTES = 1024  # given to the parser at a time: at most 170 frames, the smallest of which has 6 bytes
MAX_FRAMES_PER_TURN = 16  # parsed before other callbacks of the event loop run
MAX_CONTROL_FRAMES_PER_SECOND = 50
MAX_FRAGMENTS = 1024  # of one message
# Scope extension: the connection ended without a close frame of the client, which may come back.
LOST_EXTENSION = "carousel.lost"
FLOOD_CLOSE_CODE = 1008  # close code for too many frames
NO_MEMORY_CLOSE_CODE = 1013  # close code for a message that found no memory: try again later
CLOSE_CODE_EXTENSION = (
    "carousel.refused"  # scope extension: the code with which the server closed the connection because of a frame
)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket connection that parses a few frames per turn of the event loop, and refuses floods of frames (code
    1008).

    A transport delivers up to 256 KiB in one call, which is 43,000 empty frames; parsed at once they would block the
    event loop for a second, and the transport could deliver the next call in the same turn. So received bytes wait in
    `_unparsed` while reading is paused. Reading resumes when they are parsed and the application has taken their
    messages: at most two reads and one message of a client are buffered here. A large message is parsed to its end when
    memory for it is reserved.

    After a refused frame the connection is read to its end: a socket closed with bytes unread is reset, and a reset
    overtakes the close frame, so a client that is still sending would see a broken pipe instead of the close code. The
    close frame and the end of our side are sent, incoming bytes are discarded, and the connection closes with the
    client's side or `close_timeout` seconds later.
    """

    _next_parse: asyncio.Handle | None = None
    _control_frames = 0  # in the second that began at `_second_began`
    _second_began = 0.0
    on_lost: Callable[[], None] | None = None  # called once; set by the protocol that handed the connection over
    _raw: RawConnection | None = None  # for the process that parses the client's bytes, if this one does not

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.conn.accept = self._accept  # type: ignore[method-assign]
        self._unparsed = bytearray()
        self._slow_client_guard = SlowClientGuard(self.transport)
        self._memory: MessageMemory | None = None  # after the handshake

    def connection_lost(self, exc: Exception | None) -> None:
        if self.handshake_complete and self.conn.close_rcvd is None:
            self.scope["extensions"][LOST_EXTENSION] = {}
        if self._memory is not None:
            self._memory.close()
        self._slow_client_guard.end()
        self._unparsed.clear()
        if self._raw is not None:
            self._raw.end()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow_client_guard.begin()

    def data_received(self, data: bytes) -> None:
        if self.conn.eof_sent:  # our side has ended, and nothing more is read
            return
        if self._raw is not None:
            self._raw.receive(data)
            return
        self._unparsed += data
        if self._next_parse is None:
            self._parse()
        else:
            self.transport.pause_reading()

    def _parse(self) -> None:
        """Parse and handle a bounded number of frames; schedule the next call if bytes remain."""
        self._next_parse = None
        if self._raw is not None:
            return
        frames = 0
        while self._unparsed and not self._is_blocked and frames < MAX_FRAMES_PER_TURN:
            piece = bytes(self._unparsed[:MAX_PARSE_BYTES])
            del self._unparsed[:MAX_PARSE_BYTES]
            self.conn.receive_data(piece)
            frames += len(self.conn.events)
            if self.conn.parser_exc is not None:
                self._unparsed.clear()
                self.handle_parser_exception()
                return
            if self._memory is not None:
                self._memory.count(len(piece))
            self.handle_events()
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._is_blocked:
            self.transport.pause_reading()  # `receive` or `send` unblocks it
        elif self._unparsed:
            self.transport.pause_reading()
            self._next_parse = self.loop.call_soon(self._parse)
        else:
            self.transport.resume_reading()

    @property
    def _is_blocked(self) -> bool:
        """Return whether parsing waits for memory, or for the application: to take a message, or to answer the
        handshake, because the answer to a ping must not precede it.
        """
        waits_for_memory = self._memory is not None and self._memory.is_waiting
        return waits_for_memory or self.read_paused or (self.handshake_initiated and not self.handshake_complete)

    def _unblock(self) -> None:
        if self._next_parse is None and not self._is_blocked:
            self._next_parse = self.loop.call_soon(self._parse)

    async def receive(self) -> Any:
        """Return the next message. Unlike uvicorn, resume reading only when all received bytes are parsed; otherwise a
        transport would deliver one read after another.
        """
        if self._memory is not None:
            self._memory.release_handled()
        message = await self.queue.get()
        if self._memory is not None:
            self._memory.take()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._unblock()
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            # uvicorn would report the complete refusal of a handshake as an error of the application.
            self.handshake_complete = True
        if message["type"] != "websocket.send":
            self._unblock()

    def _accept(self, request: Request) -> Response:
        """Answer a handshake. A refusal by the library does not reach the application, so its ID is set here."""
        response = ServerProtocol.accept(self.conn, request)
        if response.status_code != 101:
            headers = [(name.encode(), value.encode("utf-8", "replace")) for name, value in request.headers.raw_items()]
            response.headers["X-Request-Id"] = client_request_id(headers) or new_request_id()
        return response

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"] |= {DIRECT_WRITE: {"write": self.write}, RAW_CONNECTION: {"take": self._take_raw}}
            self._memory = MessageMemory(
                self.scope["extensions"], self.config.ws_max_size, self._unblock, self._refuse_message
            )

    def _take_raw(self) -> RawConnection:
        """Return the connection, whose bytes are not parsed any more. The handshake is still to be accepted."""
        self._raw = RawConnection(self.transport, self.writable, bytes(self._unparsed))
        self._unparsed.clear()
        return self._raw

    def start_keepalive(self) -> None:
        if self._raw is None:  # else the process that parses the bytes sends pings
            super().start_keepalive()

    def shutdown(self) -> None:
        if self._raw is None:  # else the process that parses the bytes sends the close frame, as it stops too
            super().shutdown()

    def write(self, messages: list[bytes]) -> bool:
        """Write text messages. Return False, with nothing written, if the socket is full or the connection not open."""
        # A transport buffers only bytes that its socket did not accept.
        if self.conn.state is not State.OPEN or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return False
        self.transport.write(b"".join([_text_frame(message) for message in messages]))
        return True

    def handle_ping(self) -> None:
        if self._count_control_frame():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._count_control_frame():
            super().handle_pong(event)

    def _count_control_frame(self) -> bool:
        """Count a control frame. Return False, with the connection refused, if there are too many within a second."""
        now = self.loop.time()
        if now - self._second_began >= 1.0:
            self._second_began, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > MAX_CONTROL_FRAMES_PER_SECOND:
            self._refuse(FLOOD_CLOSE_CODE, f"more than {MAX_CONTROL_FRAMES_PER_SECOND} control frames in a second")
            return False
        return True

    def handle_cont(self, event: Frame) -> None:
        if self.conn.eof_sent:
            return
        if len(self.frames) >= MAX_FRAGMENTS:
            self.frames = []
            self._refuse(FLOOD_CLOSE_CODE, f"more than {MAX_FRAGMENTS} fragments in a message")
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self._refuse(1007, "")
                return
        super().send_receive_event_to_app()
        if self._memory is not None:
            self._memory.complete()

    def _refuse_message(self) -> None:
        self._refuse(NO_MEMORY_CLOSE_CODE, "There is no memory for this message; retry later.")

    def _refuse(self, code: int, reason: str) -> None:
        """Fail the connection (RFC 6455, 7.1.7) because of a frame that the parser itself accepted."""
        if self.conn.eof_sent:  # refused before
            return
        if self.close_sent:  # the client continues to send instead of closing
            self.transport.close()
            return
        self.conn.fail(code, reason)
        self._unparsed.clear()
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        if self.close_timer is not None:  # a close frame was sent before; these are more of the discarded bytes
            return
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        # Refused frames are marked, as clients may close with any code.
        # A disconnect message may never be received: sending fails first if the client floods at once.
        self.scope["extensions"][CLOSE_CODE_EXTENSION] = {"code": code}
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_sent = True
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        self.read_paused = False
        self.transport.resume_reading()


def _text_frame(text: bytes) -> bytes:
    """Return a whole message as a server's frame (RFC 6455, 5.2): unmasked and unfragmented. The library creates the
    same bytes with a dozen objects, none of which is cached when a token arrives.
    """
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)
