"""uvicorn's HTTP protocol with these changes: it accepts one request at a time, detects at any time that its client has
left, limits the time for a request and for an unread answer, and lets a streamed answer be written without a coroutine
per piece.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.admission.connection_limits import ConnectionLimits, Release
from app.errors import ApiError
from app.http.request_head import check_codings, check_headers, check_version
from app.http.slow_client import SlowClientGuard
from app.http.websocket import WebSocketProtocol
from app.observe.request_log import client_request_id, new_request_id
from app.streams.tail import DIRECT_WRITE

MAX_HEAD_BYTES = 1 << 16  # of a request's line and headers
HEAD_SECONDS = 30.0  # in which request line and headers must arrive
BODY_SECONDS = 120.0  # in which a body must arrive
BODY_HEADERS = (b"content-length", b"transfer-encoding")  # headers that define the length of a body
MAX_PARSE_BYTES = 16 << 10  # given to the parser at a time
MAX_PIECES_PER_TURN = 1000  # pieces of bodies, which take about 1 ms
REST_SECONDS = 0.01  # pause after a turn in which more pieces were found
LINGER_SECONDS = 1.0  # that a refused client may still send data, which is discarded
MAX_UNSENT_BYTES = 1 << 14  # of an answer that the system buffers beyond those in flight


# scope extension: `stop` drops what has arrived of a body, and closes the connection after the answer
STOP_READING = "carousel.stop_reading"


class _Flow(FlowControl):
    """Flow control that calls a function when reading is resumed."""

    def __init__(self, transport: asyncio.Transport, on_resume: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_resume = on_resume

    def resume_reading(self) -> None:
        if self.read_paused:
            super().resume_reading()
            self._on_resume()


class Connection(HttpToolsProtocol):
    """HTTP connection without pipelining: it closes after an answer if the client sent more data before its end.

    A pipelined request would have to be read; otherwise it would hide that the client has left, and the answer before
    it would be generated for no client. So early data is discarded and the connection closed after the answer, upon
    which clients send their request again (RFC 9112, 9.3.2). Heads of requests are limited in size and time and bodies
    in time, as no key has been checked by then.
    """

    _discards_input = False
    _in_head = False  # in the middle of a request line and headers
    _head_bytes = 0  # received while the head was incomplete
    _head_size = 0  # of URL and complete headers, which may all arrive at once together with a body
    _head_refusal: ApiError | None = None  # for a head that the parser itself would accept
    _refusal: ApiError | None = None  # of a connection that waits for its first bytes before it is refused
    _deadline: asyncio.TimerHandle | None = None  # of the data that is expected
    _next_turn: asyncio.TimerHandle | None = None  # call of `_parse_some`
    _pieces = 0  # pieces of a body in this turn of the event loop
    _is_body_unasked = False  # a head is complete, its body is not, and the application has not asked for it
    _on_discarded: Release | None = None  # called when the rest of an answered request's body was discarded

    def __init__(self, *args: Any, limits: ConnectionLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits or ConnectionLimits()
        self._on_lost: Release | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unparsed = bytearray()
        self.flow = _Flow(transport, self._continue_parsing)
        _limit_unsent(transport)
        self._slow_client_guard = SlowClientGuard(transport)
        try:
            self._on_lost = self._limits.enter(self.client)
        except ApiError as refusal:
            self._refuse_connection(refusal)
        else:
            self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._on_lost is not None:
            self._on_lost()
        self._end_discarding()
        self._expect(None)
        self._slow_client_guard.end()
        self._unparsed.clear()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow_client_guard.begin()

    def eof_received(self) -> None:
        # A client that closes its side gets nothing more. The transport alone would let generation continue until
        # the client has read the rest of its answer, with tokens that reach no client.
        if self._is_answering:
            self._mark_disconnected()

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            return
        if self._refusal is not None:
            self._unparsed += data
            if b"\n" in self._unparsed or len(self._unparsed) > MAX_PARSE_BYTES:
                self._answer_refused(self._refusal)
            return
        if not self._unparsed and len(data) <= MAX_PARSE_BYTES:
            self._parse(data)
            return
        self._unparsed += data
        if self._next_turn is None:
            self._parse_some()

    def _parse_some(self) -> None:
        """Parse until much has been found in one turn of the event loop: 256 KiB can be 40,000 chunks of a body."""
        self._next_turn = None
        self._pieces = 0
        while self._unparsed and not self._discards_input and not self.flow.read_paused:
            if self._pieces > MAX_PIECES_PER_TURN:
                self.transport.pause_reading()
                self._next_turn = self.loop.call_later(REST_SECONDS, self._parse_some)
                return
            piece = bytes(self._unparsed[:MAX_PARSE_BYTES])
            del self._unparsed[:MAX_PARSE_BYTES]
            self._parse(piece)
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def _continue_parsing(self) -> None:
        """Parse received data that the application asks for."""
        if self._unparsed and self._next_turn is None:
            self._parse_some()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._deadline is None and not self._is_answering:
            self._expect(HEAD_SECONDS)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if self._should_upgrade():
                self._upgrade(rest)
            else:
                self._decline_upgrade(rest)
        except httptools.HttpParserError as error:
            self._refuse_invalid(error)
        else:
            self._head_bytes += len(data)
            if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
            if self._is_body_unasked:
                self._is_body_unasked = False
                self.flow.pause_reading()

    def _upgrade(self, rest: bytes) -> None:
        """Hand the connection over, together with frames of a client that did not wait for the answer."""
        self._expect(None)
        self.handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, WebSocketProtocol)
        protocol.on_lost = self._on_lost
        rest += bytes(self._unparsed)
        self._unparsed.clear()
        if rest:
            protocol.data_received(rest)

    def _refuse_invalid(self, error: httptools.HttpParserError) -> None:
        if self._head_size > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        # The data is early or malformed. A refusal would appear inside an answer that has begun.
        if self._is_answering and (self.cycle.response_started or not self.cycle.more_body):
            self._discards_input = True
            self.cycle.keep_alive = False
            return
        refusal = self._head_refusal or ApiError(400, "the request is not valid HTTP", code="invalid_http")
        if self._head_refusal is None and not self._is_answering:
            try:
                check_codings(self.headers or [])
                if "version" in str(error):
                    check_version("")
            except ApiError as found:
                refusal = found
        self._refuse(refusal)

    def _refuse_head(self) -> None:
        message = f"the request's line and headers have more than {MAX_HEAD_BYTES} bytes"
        self._refuse(ApiError(431, message, code="headers_too_large"))

    def on_message_begin(self) -> None:
        if self._is_answering:
            raise asyncio.InvalidStateError("an answer is under way")  # makes the parser stop
        super().on_message_begin()
        self._in_head, self._head_bytes, self._head_size = True, 0, 0

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4  # with the separators
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_size > MAX_HEAD_BYTES:
            raise ValueError("too large a head")  # makes the parser stop
        try:
            check_version(self.parser.get_http_version())
            check_codings(self.headers)
            check_headers(self.headers, self.url)
            if self.parser.get_http_version() == "1.0" and (b"upgrade", b"websocket") in self.headers:
                raise ApiError(400, "A WebSocket needs HTTP/1.1.", code="invalid_http")
        except ApiError as refusal:
            self._head_refusal = refusal
            raise  # makes the parser stop
        super().on_headers_complete()
        self.scope["extensions"] = {
            DIRECT_WRITE: {"write": partial(write, self.transport)},
            STOP_READING: {"stop": self._stop_reading},
        }
        self._is_body_unasked = True
        self._expect(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        # After an answer that ended before its request did, no other time limit covers the connection.
        self._is_body_unasked = False
        self._expect(None if self._is_answering else HEAD_SECONDS)
        self._end_discarding()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.cycle.body = bytearray()  # of a body that was not read; an idle connection would keep it
        is_unread = self.cycle.more_body and not self.transport.is_closing()
        if is_unread and not self._discards_input:
            # The rest is read and discarded on few connections, which can then be used again. Others are closed: a
            # flood of refused bodies would occupy the event loop.
            self._on_discarded = self._limits.discard()
            self._discards_input = self._on_discarded is None
        super().on_response_complete()
        if is_unread and self._discards_input:
            self._close_unread()

    def _stop_reading(self) -> None:
        self._expect(None)
        self._discards_input = True
        self._unparsed.clear()
        self.cycle.body = bytearray()
        self.flow.pause_reading()

    def _close_unread(self) -> None:
        """Close without reading, when the client has had time to read the answer."""
        self._stop_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _end_discarding(self) -> None:
        if self._on_discarded is not None:
            self._on_discarded()
            self._on_discarded = None

    def _expect(self, seconds: float | None) -> None:
        """Set the time in which expected data must arrive; None: no data is expected."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        if self._in_head or (self._is_answering and not self.cycle.response_started):
            self._refuse(ApiError(408, "The request was not complete in time.", code="request_timeout"))
        else:  # no request has begun, or it was answered before its end
            self.transport.close()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Answer a request in HTTP/1.1 although it offers another protocol, as clients of HTTP/2 do in every first
        request (RFC 9110, 7.8). The parser treats all data after the head, of which `rest` has arrived, as the other
        protocol's; a new parser reads the body from it.
        """
        self.cycle.more_body, self.cycle.keep_alive = True, False
        self.cycle.message_event.clear()
        self.parser = httptools.HttpRequestParser(_Body(self))
        length = [b"%b: %b\r\n" % header for header in self.headers if header[0] in BODY_HEADERS]
        self._expect(BODY_SECONDS)
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n%b" % (b"".join(length), rest))

    def end_of_body(self) -> None:
        """Handle the end of a body after a declined upgrade; the client would send the other protocol after it."""
        self.on_message_complete()
        raise ValueError("another protocol")  # makes the parser stop

    @property
    def _request_id(self) -> str:
        """Return the ID of the current request, or a new one if its headers have not arrived."""
        headers: list[tuple[bytes, bytes]] | None = self.headers  # None at first, despite its annotation
        return client_request_id(headers or []) or new_request_id()

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None at first, despite its annotation
        return cycle is not None and not cycle.response_complete

    def _mark_disconnected(self) -> None:
        """Notify the handler of the request that its client has left."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _refuse_connection(self, refusal: ApiError) -> None:
        """Refuse a connection when its request arrives, as some clients read no answer before they have sent one. The
        number of such connections is limited, because each occupies an open file.
        """
        self._refusal = refusal
        self._deadline = self.loop.call_later(LINGER_SECONDS, self._refuse, refusal)
        self._on_lost = self._limits.linger(self._close_refused)

    def _answer_refused(self, refusal: ApiError) -> None:
        """Answer the first request of a refused connection. A probe of a full server is answered: it is alive."""
        method, _, target = bytes(self._unparsed).partition(b" ")
        path = target.removeprefix(self.root_path.encode())
        if method == b"GET" and path.startswith((b"/livez ", b"/livez?")):
            self._end(200, {"status": "alive"}, {})
        else:
            self._refuse(refusal)

    def _close_refused(self) -> None:
        if not self._discards_input and self._refusal is not None:
            self._refuse(self._refusal)
        self.transport.close()

    def _refuse(self, refusal: ApiError) -> None:
        self._end(refusal.status, refusal.body, refusal.headers)

    def _end(self, status: int, content: dict[str, Any], more_headers: Mapping[str, str]) -> None:
        """Answer and close the connection, in place of a handler."""
        self._expect(None)
        self._discards_input = True
        if self._is_answering:  # the handler stops waiting for the body, and nothing is written after the refusal
            self.scope["extensions"] = {}
            self._mark_disconnected()
        body = json.dumps(content).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": self._request_id,
            **more_headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        self.transport.write(f"{first}{lines}\r\n".encode() + body)
        self.transport.write_eof()
        # A connection closed with unread bytes would be reset, and the reset would overtake the answer.
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


class _Body:
    """Parser callbacks for the body of a request after a declined upgrade."""

    def __init__(self, connection: Connection) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.end_of_body


def write(transport: asyncio.Transport, piece: bytes) -> bool:
    """Write a piece of a chunked body. Return False, with nothing written, if the socket is full or closed."""
    # A transport buffers only bytes that its socket did not accept.
    if transport.is_closing() or transport.get_write_buffer_size():
        return False
    transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True


def _limit_unsent(transport: asyncio.Transport) -> None:
    """Limit the unsent bytes in the system's buffer. The system buffers megabytes for a slow reader and accepts more
    only after much of it was sent, so a client that reads steadily would seem to read nothing for minutes.
    """
    connection = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
