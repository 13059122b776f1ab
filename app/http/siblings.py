"""Siblings: the API processes that share a port, and the forwarding of requests among them.

A connection reaches any of the processes, but streams, stored responses and idempotency keys are in the memory of one.
A request for an ID that is not known here is forwarded to the process that knows it, over a loopback socket of that
process, and its answer is passed on as it arrives.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httptools
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ApiError
from app.http.disconnect import cancel_on_disconnect

LOOPBACK = "127.0.0.1"
CLIENT_HEADER = b"x-carousel-client"  # address of the client, in requests of siblings
HELD_CODE = b'"held_elsewhere"'  # error code of an answer that another process computes
# Error codes of requests whose bodies name what another process may have.
UNKNOWN_CODES = ("previous_response_not_found", "conversation_not_found", "item_not_found")
# until a process that was killed has lost its requests, or is started again
HELD_SECONDS, POLL_SECONDS = 2.0, 0.1
CONNECT_SECONDS = 5.0  # for a process that is being started again
READ_BYTES = 1 << 16
MAX_BODY_BYTES = 256 << 10  # of a request by ID that may be forwarded; a longer one is answered here
# Requests by the ID of something that one process has. The routes of an input's tokens have no ID.
BY_ID = re.compile(r"/v1/(streams|requests|responses(?!/input_tokens)|conversations|chat/completions)/[^/]")
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect"}

log = logging.getLogger("carousel.siblings")


class _Parsed:
    """Response as httptools parses it."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = self.is_complete = False
        self.chunks: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Forwarded(Response):
    """Answer of a sibling, whose head has arrived. It is passed on as it arrives, or closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parsed = _Parsed()
        self._parser = httptools.HttpResponseParser(self._parsed)
        self.background = None

    async def read_head(self) -> None:
        """Read the head. Raises `OSError` if the sibling has gone."""
        while not self._parsed.has_head:
            await self._read()
        self.status_code = self._parser.get_status_code()
        self.raw_headers = [(name, value) for name, value in self._parsed.headers if name not in HOP_BY_HOP]

    async def read_body(self) -> bytes:
        """Return the whole body, which can be passed on afterwards. Raises `OSError`."""
        body = b"".join([chunk async for chunk in self.chunks()])
        self._parsed.chunks = [body]
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises `OSError`."""
        parsed = self._parsed
        while True:
            chunks, parsed.chunks = parsed.chunks, []
            if chunks:
                yield b"".join(chunks)
            elif parsed.is_complete:
                return
            else:
                await self._read()

    def close(self) -> None:
        """Close the connection, which tells the sibling that the client has left."""
        self._writer.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with cancel_on_disconnect(receive):
                async for chunk in self.chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except OSError as error:  # the connection ends without the end of the answer, so that the client resumes it
            log.warning("an answer of another API process was cut off: %s", error)
        finally:
            self.close()

    async def _read(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ConnectionResetError("the API process that has the answer has ended")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionResetError(f"its answer cannot be read: {error}") from None


class SiblingAbsent(Exception):
    """A process that may know an ID cannot be asked, as it is being started again."""


def sibling_absent() -> ApiError:
    """Return the error (503) for an ID that no process knows, if one of them cannot be asked."""
    message = "an API process that may have what the request names is being started again; retry in a few seconds"
    return ApiError(503, message, code="engine_unavailable", headers={"Retry-After": "1"})


class Siblings:
    """API processes that share a port with this one."""

    def __init__(self, index: int, ports: Sequence[int]) -> None:
        """index: of this process. ports: of all of them."""
        self.index = index
        self._ports = ports

    @property
    def others(self) -> list[int]:
        """Return the numbers of the other processes."""
        return [number for number in range(len(self._ports)) if number != self.index]

    def has_sent(self, scope: Scope) -> bool:
        """Return whether a request comes from a sibling."""
        return bool(scope.get("server")) and scope["server"][1] == self._ports[self.index]

    def home_of(self, tenant_id: str, key: str) -> int:
        """Return the process that has the answers of an idempotency key."""
        digest = hashlib.sha256(f"{tenant_id}\0{key}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % len(self._ports)

    async def forward(self, number: int, scope: Scope, body: bytes = b"", wait_seconds: float = 0.0) -> Forwarded:
        """Send a request to a process, and return its answer once the head has arrived. Raises `OSError`.

        wait_seconds: for a process that is being started again.
        """
        reader, writer = await self._connect(number, wait_seconds)
        forwarded = Forwarded(reader, writer)
        try:
            writer.write(b"".join(_request(scope, body)))
            await writer.drain()
            await forwarded.read_head()
        except BaseException:
            forwarded.close()
            raise
        return forwarded

    async def find(self, scope: Scope, body: bytes = b"") -> Forwarded | None:
        """Return the answer of the first process that knows the ID of a request; None if none does.

        Raises `SiblingAbsent` if none of those that can be asked does, and another one cannot.
        """
        is_absent = False
        for number in self.others:
            try:
                forwarded = await self.forward(number, scope, body)
                if not await _is_missing(forwarded):
                    return forwarded
                forwarded.close()
            except OSError:
                is_absent = True
        if is_absent:
            raise SiblingAbsent
        return None

    async def _connect(self, number: int, wait_seconds: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ends_at = time.monotonic() + wait_seconds
        while True:
            try:
                return await asyncio.open_connection(LOOPBACK, self._ports[number])
            except OSError:
                if time.monotonic() >= ends_at:
                    raise
            await asyncio.sleep(POLL_SECONDS)


class SiblingMiddleware:
    """Middleware that answers a request by ID with the answer of the process that knows the ID. Pure ASGI."""

    def __init__(self, app: ASGIApp, siblings: Siblings) -> None:
        self._app = app
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._siblings.has_sent(scope):
            scope["client"] = _client_of(scope["headers"])
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and BY_ID.match(scope["path"]) and _may_forward(scope):
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer here, or pass on the answer of the sibling that knows the ID."""
        body = await _read_body(receive)
        if body is None:
            return  # the client has left
        ends_at = time.monotonic() + HELD_SECONDS
        while True:
            held = _HeldBack(send)
            await self._app(dict(scope), _replayed(body, receive), held)
            if not held.messages:
                return
            is_absent = False
            try:
                forwarded = await self._siblings.find(scope, body)
            except SiblingAbsent:
                is_absent = True
            else:
                if forwarded is not None:
                    await forwarded(scope, receive, send)
                    return
            if not (held.is_elsewhere or is_absent) or time.monotonic() >= ends_at:
                break
            await asyncio.sleep(POLL_SECONDS)  # its process has died, and the engine is about to notice
        if is_absent and not held.is_elsewhere:
            error = sibling_absent()
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        for message in held.messages:
            await send(message)


class _HeldBack:
    """`send` of an application that holds back an answer about an unknown ID."""

    def __init__(self, send: Send) -> None:
        self.messages: list[Message] = []
        self._send = send

    async def __call__(self, message: Message) -> None:
        if self.messages or (message["type"] == "http.response.start" and message["status"] in (404, 410, 503)):
            self.messages.append(message)
        else:
            await self._send(message)

    @property
    def is_elsewhere(self) -> bool:
        """Return whether an engine computes the answer for another process."""
        return any(HELD_CODE in message.get("body", b"") for message in self.messages)


async def _is_missing(forwarded: Forwarded) -> bool:
    """Return whether an answer is about an unknown ID."""
    if forwarded.status_code in (404, 410):
        return True
    if forwarded.status_code not in (400, 503):
        return False
    body = await forwarded.read_body()
    return HELD_CODE in body or any(f'"{code}"'.encode() in body for code in UNKNOWN_CODES)


def _may_forward(scope: Scope) -> bool:
    """Return whether the body of a request is short enough to be kept."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" not in headers and length.isdigit() and int(length) <= MAX_BODY_BYTES


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if the client has left."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` with a body that was read."""
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _client_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, int] | None:
    """Return the address of the client of a forwarded request."""
    host = dict(headers).get(CLIENT_HEADER, b"").decode("latin-1")
    return (host, 0) if host else None


def _request(scope: Scope, body: bytes) -> Iterable[bytes]:
    """Yield the parts of a request for a sibling."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    yield b"%s %s HTTP/1.1\r\n" % (scope["method"].encode(), target)
    for name, value in scope["headers"]:
        if name not in HOP_BY_HOP and name not in (b"content-length", CLIENT_HEADER):
            yield b"%s: %s\r\n" % (name, value)
    host = scope["client"][0] if scope.get("client") else ""
    yield b"connection: close\r\n%s: %s\r\n" % (CLIENT_HEADER, host.encode("latin-1"))
    if body:
        yield b"content-length: %d\r\n" % len(body)
    yield b"\r\n"
    yield body
