"""uvicorn's HTTP protocol, which here takes one request at a time, hears at any time that its client has left, waits
for no request for ever, nor for a client to take an answer, and lets one that is streamed be written without a
coroutine for each piece.
"""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.connection_limits import ConnectionLimits, Release
from app.errors import ApiError
from app.following import AT_ONCE
from app.patience import Patience
from app.request_head import check_codings, check_headers, check_version
from app.request_log import client_request_id, new_request_id
from app.websocket import WebSocketProtocol

MAX_HEAD = 1 << 16  # bytes of a request's line and headers
HEAD_SECONDS = 30.0  # that they may take
BODY_SECONDS = 120.0  # that a body may take
BODY_HEADERS = (b"content-length", b"transfer-encoding")  # which say how long a body is
PARSE_BYTES = 16 << 10  # given to the parser at a time
MAX_FOUND_PER_TURN = 1000  # pieces of bodies, which take about 1 ms
REST_SECONDS = 0.01  # after a turn in which more was found
LINGER = 1.0  # seconds that a refused client may still speak to nobody
UNSENT = 1 << 14  # bytes that the system keeps of an answer beyond those on their way


class Connection(HttpToolsProtocol):
    """Closes after an answer behind which more was sent before it was complete, instead of answering that too.

    A request that waits in the connection would have to be read, or it would hide that the client has left: the answer
    before it would go on for nobody. So what comes meanwhile is thrown away and the connection closed when the answer
    is complete, upon which clients ask again (RFC 9112, 9.3.2). Heads of requests are limited in size and time and
    bodies in time, as nobody's key is known by then.
    """

    _is_deaf = False
    _is_head = False  # in the middle of one
    _head_bytes = 0  # that came while it had no end
    _head_size = 0  # of its address and whole headers, which may all come at once with a body behind them
    _head_refusal: ApiError | None = None  # of a head that the parser would take
    _refusal: ApiError | None = None  # of a connection that waits for its first bytes to be refused
    _deadline: asyncio.TimerHandle | None = None  # of what is coming
    _next_turn: asyncio.TimerHandle | None = None  # of `_parse_some`
    _found = 0  # pieces of a body, in this turn of the event loop

    def __init__(self, *args: Any, limits: ConnectionLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits or ConnectionLimits()
        self._on_lost: Release | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unparsed = bytearray()
        _keep_little(transport)
        self._patience = Patience(transport)
        try:
            self._on_lost = self._limits.enter(self.client)
        except ApiError as refusal:
            self._refuse_connection(refusal)
        else:
            self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._on_lost is not None:
            self._on_lost()
        self._expect(None)
        self._patience.end()
        self._unparsed.clear()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._patience.begin()

    def eof_received(self) -> None:
        # Nothing more is sent to it. Left to the transport, whoever still had to take some of its answer would be
        # served on until it had, by tokens that go nowhere.
        if self._is_answering:
            self._leave()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        if not self._unparsed and len(data) <= PARSE_BYTES:
            self._parse(data)
            return
        self._unparsed += data
        if self._next_turn is None:
            self._parse_some()

    def _parse_some(self) -> None:
        """Parse until much has been found in a turn of the event loop: 256 KiB can be 40,000 chunks of a body."""
        self._next_turn = None
        self._found = 0
        while self._unparsed and not self._is_deaf:
            if self._found > MAX_FOUND_PER_TURN:
                self.transport.pause_reading()
                self._next_turn = self.loop.call_later(REST_SECONDS, self._parse_some)
                return
            piece = bytes(self._unparsed[:PARSE_BYTES])
            del self._unparsed[:PARSE_BYTES]
            self._parse(piece)
        if not self.flow.read_paused:
            self.transport.resume_reading()

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
                self._stay(rest)
        except httptools.HttpParserError as error:
            self._refuse_invalid(error)
        else:
            self._head_bytes += len(data)
            if self._is_head and self._head_bytes > MAX_HEAD:
                self._refuse_head()

    def _upgrade(self, rest: bytes) -> None:
        """Hand the connection over, with the frames of a client that did not wait for the answer."""
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
        if self._head_size > MAX_HEAD:
            self._refuse_head()
            return
        # What came is too early, or nonsense. A refusal would stand in the middle of an answer that has begun.
        if self._is_answering and (self.cycle.response_started or not self.cycle.more_body):
            self._is_deaf = True
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
        message = f"the request's line and headers have more than {MAX_HEAD} bytes"
        self._refuse(ApiError(431, message, code="headers_too_large"))

    def on_message_begin(self) -> None:
        if self._is_answering:
            raise asyncio.InvalidStateError("an answer is under way")  # the parser gives up
        super().on_message_begin()
        self._is_head, self._head_bytes, self._head_size = True, 0, 0

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4  # with what stands between and behind
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head = False
        if self._head_size > MAX_HEAD:
            raise ValueError("too large a head")  # the parser gives up
        try:
            check_version(self.parser.get_http_version())
            check_codings(self.headers)
            check_headers(self.headers, self.url)
            if self.parser.get_http_version() == "1.0" and (b"upgrade", b"websocket") in self.headers:
                raise ApiError(400, "a WebSocket needs HTTP/1.1", code="invalid_http")
        except ApiError as refusal:
            self._head_refusal = refusal
            raise  # the parser gives up
        super().on_headers_complete()
        self.scope["extensions"] = {AT_ONCE: {"write": partial(write, self.transport)}}
        self._expect(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._found += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        # Who has been answered before its end is not waited for by anybody else.
        self._expect(None if self._is_answering else HEAD_SECONDS)
        super().on_message_complete()

    def _expect(self, seconds: float | None) -> None:
        """What is coming has to have come by then; None: nothing is."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._is_head or (self._is_answering and not self.cycle.response_started):
            self._refuse(ApiError(408, "the request did not come to its end in time", code="request_timeout"))
        else:  # nothing was asked, or it has been answered before its end
            self.transport.close()

    def _stay(self, rest: bytes) -> None:
        """A request is answered in HTTP/1.1 although it offers another protocol, as clients of HTTP/2 do in every first
        one (RFC 9110, 7.8). The parser holds all behind its head, of which `rest` has come, for that protocol's: what
        is its body is for a new one to find."""
        self.cycle.more_body, self.cycle.keep_alive = True, False
        self.cycle.message_event.clear()
        self.parser = httptools.HttpRequestParser(_Body(self))
        length = [b"%b: %b\r\n" % header for header in self.headers if header[0] in BODY_HEADERS]
        self._expect(BODY_SECONDS)
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n%b" % (b"".join(length), rest))

    def end_of_body(self) -> None:
        """Of a request that did not change the protocol; what follows it was to be in another one."""
        self.on_message_complete()
        raise ValueError("another protocol")  # the parser gives up

    @property
    def _request_id(self) -> str:
        """The ID of the request that has come, or a new one where its headers have not."""
        headers: list[tuple[bytes, bytes]] | None = self.headers  # None at first, whatever its annotation says
        return client_request_id(headers or []) or new_request_id()

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None at first, whatever its annotation says
        return cycle is not None and not cycle.response_complete

    def _leave(self) -> None:
        """Tell whoever answers that nobody hears it."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _refuse_connection(self, refusal: ApiError) -> None:
        """Refuse a connection when its first bytes come, as some clients take no answer before they have sent a
        request. Beyond a number of such connections it is refused and closed at once: each occupies an open file."""
        self._on_lost = self._limits.linger()
        if self._on_lost is None:
            self._refuse(refusal)
            self.transport.close()
        else:
            self._refusal = refusal
            self._deadline = self.loop.call_later(LINGER, self._refuse, refusal)

    def _refuse(self, refusal: ApiError) -> None:
        self._expect(None)
        self._is_deaf = True
        if self._is_answering:  # whoever waits for the body need not any more, and nothing is written behind this
            self.scope["extensions"] = {}
            self._leave()
        body = json.dumps(refusal.body).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": self._request_id,
            **refusal.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        self.transport.write(f"{status}{lines}\r\n".encode() + body)
        self.transport.write_eof()
        # Closed with bytes unread, the connection would be reset, which overtakes what was just said.
        self.loop.call_later(LINGER, self.transport.close)


class _Body:
    """Takes from a parser what is the body of a connection's request."""

    def __init__(self, connection: Connection) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.end_of_body


def write(transport: asyncio.Transport, piece: bytes) -> bool:
    """Write a piece of a chunked body. False, with nothing written, while the socket is full and when it is gone."""
    # What a transport keeps is what its socket did not take.
    if transport.is_closing() or transport.get_write_buffer_size():
        return False
    transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True


def _keep_little(transport: asyncio.Transport) -> None:
    """A system keeps megabytes for a slow reader, and says that it takes more only when a good part of them is gone:
    whoever reads all the time would seem to take nothing for minutes."""
    connection = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
