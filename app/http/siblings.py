"""Siblings: the API processes that share a port, and the forwarding of requests among them.

A connection reaches any of the processes, but streams, stored responses and idempotency keys are in the memory of one.
Requests are forwarded over a loopback socket of each process, and answers are passed on as they arrive.
`sibling_middleware.py` decides which requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from urllib.parse import urlencode

import httptools
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import ApiError
from app.http.disconnect import cancel_on_disconnect
from app.http.tunnel import RAW_CONNECTION, RawConnection, tunnel

LOOPBACK = "127.0.0.1"
CLIENT_HEADER = b"x-carousel-client"  # address of the client, in requests of siblings
HELD_CODE = b'"held_elsewhere"'  # error code of an answer that another process computes
# Error codes of requests whose bodies name what another process may have.
UNKNOWN_CODES = ("previous_response_not_found", "conversation_not_found", "item_not_found")
POLL_SECONDS = 0.1
CONNECT_SECONDS = 5.0  # for a process that is being started again
ANSWER_SECONDS = 5.0  # for the answer to a question, which needs no text from the model
READ_BYTES = 1 << 16
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
        self._rest = b""  # of a WebSocket, after the head
        self.background = None

    @property
    def is_upgraded(self) -> bool:
        """Return whether the sibling has accepted a WebSocket."""
        return self.status_code == 101

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
        if scope["type"] == "websocket":
            await self._answer_handshake(scope, receive, send)
            return
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

    async def _answer_handshake(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the refusal of a WebSocket, or its acceptance and then all bytes, as they come."""
        try:
            if not self.is_upgraded:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}
                await Response(await self.read_body(), self.status_code, headers)(scope, receive, send)
                return
            raw: RawConnection = scope["extensions"][RAW_CONNECTION]["take"]()
            subprotocol = dict(self.raw_headers).get(b"sec-websocket-protocol")
            await send({"type": "websocket.accept", "subprotocol": subprotocol and subprotocol.decode("latin-1")})
            await tunnel(raw, self._reader, self._writer, self._rest)
        except OSError as error:  # the connection ends without a close frame, so that the client takes the session up
            log.warning("a WebSocket to another API process was cut off: %s", error)
        finally:
            self.close()

    async def _read(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ConnectionResetError("the API process that has the answer has ended")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            raise ConnectionResetError(f"its answer cannot be read: {error}") from None


class _RefusalFields(msgspec.Struct, frozen=True):
    """Fields of an error."""

    message: str
    param: str | None = None
    code: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """Body of an error."""

    error: _RefusalFields


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
        self.websockets = 0  # open ones whose bytes are passed on
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
            # A handshake is answered at once.
            async with asyncio.timeout(ANSWER_SECONDS if scope["type"] == "websocket" else None):
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

    async def ask(
        self, number: int, scope: Scope, path: str, query: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bytes | None:
        """Return the answer of a process to a question of the client of `scope`, None if it does not know what the
        path names. Raises `SiblingAbsent`, and the `ApiError` that it answers with.
        """
        question = {"type": "http", "raw_path": path.encode(), "query_string": urlencode(query or {}).encode()}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                forwarded = await self.forward(number, {**scope, **question}, body)
                try:
                    answer = await forwarded.read_body()
                finally:
                    forwarded.close()
        except OSError:  # a timeout is one
            raise SiblingAbsent from None
        if forwarded.status_code == 200:
            return answer
        if forwarded.status_code == 404:
            return None
        raise _error_of(forwarded, answer)

    async def _connect(self, number: int, wait_seconds: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ends_at = time.monotonic() + wait_seconds
        while True:
            try:
                return await asyncio.open_connection(LOOPBACK, self._ports[number])
            except OSError:
                if time.monotonic() >= ends_at:
                    raise
            await asyncio.sleep(POLL_SECONDS)


async def _is_missing(forwarded: Forwarded) -> bool:
    """Return whether an answer is about an unknown ID."""
    if forwarded.status_code in (404, 410):
        return True
    if forwarded.status_code not in (400, 503):
        return False
    body = await forwarded.read_body()
    return HELD_CODE in body or any(f'"{code}"'.encode() in body for code in UNKNOWN_CODES)


def _error_of(answer: Forwarded, body: bytes) -> ApiError:
    """Return the error that a process answers with."""
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.MsgspecError:
        error = _RefusalFields(message="another API process cannot answer")
    retry = dict(answer.raw_headers).get(b"retry-after")
    headers = {} if retry is None else {"Retry-After": retry.decode("latin-1")}
    return ApiError(answer.status_code, error.message, param=error.param, code=error.code, headers=headers)


def _request(scope: Scope, body: bytes) -> Iterable[bytes]:
    """Yield the parts of a request for a sibling."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    is_socket = scope["type"] == "websocket"
    yield b"%s %s HTTP/1.1\r\n" % (b"GET" if is_socket else scope["method"].encode(), target)
    for name, value in scope["headers"]:
        if name not in HOP_BY_HOP and name not in (b"content-length", CLIENT_HEADER):
            yield b"%s: %s\r\n" % (name, value)
    host = scope["client"][0] if scope.get("client") else ""
    yield b"connection: upgrade\r\nupgrade: websocket\r\n" if is_socket else b"connection: close\r\n"
    yield b"%s: %s\r\n" % (CLIENT_HEADER, host.encode("latin-1"))
    if body:
        yield b"content-length: %d\r\n" % len(body)
    yield b"\r\n"
    yield body
