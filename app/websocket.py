"""uvicorn's WebSocket protocol, with three manners more: it says goodbye to who is still speaking, does not log the
mistakes of others as if they were its own, and does not wait for ever for who takes nothing. And it lets messages be
written without a coroutine for each.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from app.following import AT_ONCE
from app.patience import Patience


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Reads a frame that it refuses to its end, so that its sender hears why.

    A socket closed with bytes unread is reset, and a reset overtakes the close frame: whoever sent too big a frame
    would find a broken pipe in place of 1009. So the close frame and the end of our side are sent, what still comes
    is thrown away, and the connection goes when the client's side ends too, or `close_timeout` seconds later.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._patience = Patience(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._patience.begin()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][AT_ONCE] = {"write": self.write}

    def write(self, messages: list[bytes]) -> bool:
        """Write text messages. False, with nothing written, while the socket is full, and before and behind the time in
        which messages are sent."""
        # What a transport keeps is what its socket did not take.
        if self.conn.state is not State.OPEN or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return False
        self.transport.write(b"".join([_text_frame(message) for message in messages]))
        return True

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        if self.close_timer is not None:  # said already; this is more of what nobody reads
            return
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_sent = True
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()


def _text_frame(text: bytes) -> bytes:
    """A whole message as a server sends it (RFC 6455, 5.2): unmasked, in one frame. The library makes the same bytes of
    it by way of a dozen objects, none of which is in a cache when a token comes."""
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)
