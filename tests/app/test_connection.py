"""What a connection offers to an answer that is streamed, and for how long it waits for a request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import app.connection
from app.connection import Connection, write

LOOPS = [asyncio.new_event_loop]
try:
    import uvloop

    LOOPS.append(uvloop.new_event_loop)
except ImportError:  # there is none for every system
    pass


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_full_socket_does_not_take_is_not_kept(loop: Callable[[], asyncio.AbstractEventLoop]):
    """The writer hears it, and the pieces that were taken are on the wire, whole and in order."""

    async def play() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        await asyncio.sleep(0)
        theirs.setblocking(False)
        try:
            await talk(transport, theirs)
        finally:
            transport.abort()
            theirs.close()

    async def talk(transport: asyncio.Transport, theirs: socket.socket) -> None:
        expected = bytearray()
        for number in range(1_000):
            piece = b"%d " % number * 1000
            if not write(transport, piece):
                break
            expected += b"%x\r\n%b\r\n" % (len(piece), piece)
        assert 0 < number < 999
        kept = transport.get_write_buffer_size()
        assert kept > 0 and not write(transport, b"more") and transport.get_write_buffer_size() == kept
        heard = bytearray()
        async with asyncio.timeout(10):
            while len(heard) < len(expected):
                heard += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        assert heard == expected
        assert write(transport, b"x") and theirs.recv(100) == b"1\r\nx\r\n"
        transport.close()
        assert not write(transport, b"y")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play())


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "sent, said",
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
async def test_no_request_is_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch, sent: bytes, said: bytes):
    """Who sends none, or one without an end, loses the connection; who has one that lasts is answered in full."""
    monkeypatch.setattr(app.connection, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(app.connection, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(app.connection, "LINGER", 0.05)

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
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            *first, last = sent.split(b"PAUSE")
            for piece in first:
                writer.write(piece)
                await asyncio.sleep(0.05)
            writer.write(last)
            heard = await reader.read()
            writer.close()
    finally:
        server.should_exit = True
        await serving
    assert heard.startswith(said) and heard.count(b"HTTP/1.1") == (1 if said else 0)


async def test_of_a_slow_reader_it_is_known_what_it_takes():
    """The system keeps little: a reader that takes some of an answer makes room for more of it."""
    piece, pieces = b"a" * (1 << 14), 1000
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while taken < pieces:
            taken += 1
            yield piece

    async def serve(_: Request) -> StreamingResponse:
        return StreamingResponse(endless())

    async def settled() -> int:
        before = -1
        while before != taken:
            before = taken
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
        async with asyncio.timeout(20):
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
