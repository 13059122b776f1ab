"""Writes to the connection of a streamed answer, and timeouts of incomplete requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import app.http.connection
from app.admission.connection_limits import MAX_DISCARDING, ConnectionLimits
from app.http.connection import Connection, write
from tests.limits import HANG_SECONDS

LOOPS = [asyncio.new_event_loop]
try:
    import uvloop

    LOOPS.append(uvloop.new_event_loop)
except ImportError:  # uvloop is not available for every system
    pass


@pytest.mark.parametrize("loop", LOOPS)
def test_data_that_a_full_socket_rejects_is_not_buffered(loop: Callable[[], asyncio.AbstractEventLoop]):
    """`write` returns False, and the chunks that were accepted arrive complete and in order."""

    async def connect() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        await asyncio.sleep(0)
        theirs.setblocking(False)
        try:
            await exchange(transport, theirs)
        finally:
            transport.abort()
            theirs.close()

    async def exchange(transport: asyncio.Transport, theirs: socket.socket) -> None:
        expected = bytearray()
        for number in range(1_000):
            piece = b"%d " % number * 1000
            if not write(transport, piece):
                break
            expected += b"%x\r\n%b\r\n" % (len(piece), piece)
        assert 0 < number < 999
        buffered = transport.get_write_buffer_size()
        assert buffered > 0 and not write(transport, b"more") and transport.get_write_buffer_size() == buffered
        received = bytearray()
        async with asyncio.timeout(HANG_SECONDS):
            while len(received) < len(expected):
                received += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        assert received == expected
        assert write(transport, b"x") and theirs.recv(100) == b"1\r\nx\r\n"
        transport.close()
        assert not write(transport, b"y")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(connect())


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "sent, expected",
    [
        (b"", b""),
        (b"\r\n", b""),
        (HEAD, b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 9\r\n\r\nhalf", b"HTTP/1.1 408 "),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 9\r\n\r\nhalf", b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 9\r\n\r\nall of it", b"HTTP/1.1 200 "),
        (HEAD + b"Content-Length: 9\r\n\r\nall of it\r\n", b"HTTP/1.1 200 "),
        (HEAD.replace(b"/", b"/hasty", 1) + b"Content-Length: 9\r\n\r\nallPAUSE of it", b"HTTP/1.1 200 "),
    ],
)
async def test_incomplete_requests_time_out(monkeypatch: pytest.MonkeyPatch, sent: bytes, expected: bytes):
    """A client without a complete request loses the connection, and a slow response is sent in full."""
    monkeypatch.setattr(app.http.connection, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(app.http.connection, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(app.http.connection, "LINGER_SECONDS", 0.05)

    async def slow(request: Request) -> PlainTextResponse:
        body = await request.body()
        await asyncio.sleep(0.3)
        return PlainTextResponse(body)

    async def hasty(_: Request) -> PlainTextResponse:
        return PlainTextResponse("whatever it is")

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        Starlette(routes=[Route("/", slow, methods=["POST"]), Route("/hasty", hasty, methods=["POST"])]),
        http=Connection,
        log_config=None,
        timeout_keep_alive=1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with asyncio.timeout(HANG_SECONDS):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            *first, last = sent.split(b"PAUSE")
            for piece in first:
                writer.write(piece)
                await asyncio.sleep(0.05)
            writer.write(last)
            received = await reader.read()
            writer.close()
    finally:
        server.should_exit = True
        await serving
    assert received.startswith(expected) and received.count(b"HTTP/1.1") == (1 if expected else 0)


async def test_the_progress_of_a_slow_reader_is_visible():
    """Kernel buffers are small, so that each read of a slow client makes room for a little more of the answer."""
    piece, num_chunks = b"a" * (1 << 14), 1000
    chunks_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal chunks_sent
        while chunks_sent < num_chunks:
            chunks_sent += 1
            yield piece

    async def serve(_: Request) -> StreamingResponse:
        return StreamingResponse(endless())

    async def settled() -> int:
        before = -1
        while before != chunks_sent:
            before = chunks_sent
            await asyncio.sleep(0.2)
        return before

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=[Route("/", serve)]), http=Connection, log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    loop = asyncio.get_running_loop()
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    reader.setblocking(False)
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await loop.sock_connect(reader, listening.getsockname())
            await loop.sock_sendall(reader, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            full = await settled()
            for _ in range(20):
                await loop.sock_recv(reader, len(piece))
            assert full < await settled() < full + 30
    finally:
        reader.close()
        server.should_exit = True
        await serving


async def test_few_connections_discard_the_body_of_an_answered_request(monkeypatch: pytest.MonkeyPatch):
    """These answer a next request. Further ones get their answer too, and are closed with the body unread."""
    monkeypatch.setattr(app.http.connection, "LINGER_SECONDS", 0.05)
    size, request = 1 << 20, HEAD + b"Content-Length: %d\r\n\r\n"

    async def refuse(_: Request) -> PlainTextResponse:
        return PlainTextResponse("no", 429)

    async def answer(reader: asyncio.StreamReader) -> bytes:
        return (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0] + await reader.readexactly(2)

    listening = socket.create_server(("127.0.0.1", 0))
    routes = [Route("/", refuse, methods=["POST"])]
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=routes),
            http=partial(Connection, limits=ConnectionLimits()),  # type: ignore[arg-type]
            log_config=None,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with asyncio.timeout(20):
            clients = [await asyncio.open_connection(*listening.getsockname()) for _ in range(MAX_DISCARDING + 1)]
            for reader, writer in clients:
                writer.write(request % size)
                assert await answer(reader) == b"HTTP/1.1 429 Too Many Requestsno"
            assert await clients[-1][0].read() == b""
            for reader, writer in clients[:-1]:
                writer.write(bytes(size) + request % 0)
                assert await answer(reader) == b"HTTP/1.1 429 Too Many Requestsno"
            for _, writer in clients:
                writer.close()
    finally:
        server.should_exit = True
        await serving
