"""uvicorn's HTTP protocol, which here takes one request at a time, hears at any time that its client has left, and lets
an answer that is streamed be written without a coroutine for each piece.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.errors import error_body
from app.sse import AT_ONCE

MAX_HEAD = 1 << 16  # bytes of a request's line and headers
LINGER = 1.0  # seconds that a refused client may still speak to nobody


class Connection(HttpToolsProtocol):
    """Closes after an answer behind which more was sent before it was complete, instead of answering that too.

    A request that waits in the connection would have to be read, or it would hide that the client has left: the answer
    before it would go on for nobody. So what comes meanwhile is thrown away and the connection closed when the answer
    is complete, upon which clients ask again (RFC 9112, 9.3.2). Heads of requests are limited, as nobody's key is known
    by then.
    """

    _is_deaf = False
    _is_head = False  # in the middle of one
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            if self._is_answering:  # what came is too early, or nonsense
                self._is_deaf = True
                self.cycle.keep_alive = False
            else:
                self._refuse(400, "the request is not valid HTTP", "invalid_http")
        else:
            self._head_bytes += len(data)
            if self._is_head and self._head_bytes > MAX_HEAD:
                self._refuse(
                    431, f"the request's line and headers have more than {MAX_HEAD} bytes", "headers_too_large"
                )

    def on_message_begin(self) -> None:
        if self._is_answering:
            raise asyncio.InvalidStateError("an answer is under way")  # the parser gives up
        super().on_message_begin()
        self._is_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._is_head = False
        super().on_headers_complete()
        self.scope["extensions"] = {AT_ONCE: {"write": partial(write, self.transport)}}

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None at first, whatever its annotation says
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._is_deaf = True
        body = json.dumps(error_body(status, message, code=code)).encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        self.transport.write_eof()
        # Closed with bytes unread, the connection would be reset, which overtakes what was just said.
        self.loop.call_later(LINGER, self.transport.close)


def write(transport: asyncio.Transport, piece: bytes) -> bool:
    """Write a piece of a chunked body. False, with nothing written, while the socket is full and when it is gone."""
    # What a transport keeps is what its socket did not take.
    if transport.is_closing() or transport.get_write_buffer_size():
        return False
    transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True
