"""Timeouts for clients that do not read, over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.http import slow_client
from app.http.answer_stream import AnswerStream
from app.http.connection import Connection
from app.http.slow_client import set_tcp_user_timeout
from app.http.websocket import WebSocketProtocol
from tests.app.http.test_connection import LOOPS
from tests.limits import HANG_SECONDS

CHUNK = b"data: %b\n\n" % (b"a" * 2000)
MAX_CHUNKS = 20_000  # chunks, more than any socket buffers
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class StreamingApp:
    """Application with endless responses, which records how they ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.chunks_sent = 0

    async def content(self, chunks: int = MAX_CHUNKS) -> AsyncIterator[bytes]:
        try:
            for _ in range(chunks):
                self.chunks_sent += 1
                yield CHUNK
                await asyncio.sleep(0)
        finally:
            self.ended.set()

    async def stream(self, request: Request) -> Response:
        pieces = int(request.query_params.get("pieces", MAX_CHUNKS))
        return AnswerStream(lambda _: self.content(pieces), lambda: None, "text/event-stream")

    async def live(self, _: Request) -> Response:
        return EventSourceResponse(self.content())

    async def whole(self, _: Request) -> Response:
        return Response(MAX_CHUNKS * CHUNK)

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            async for chunk in self.content():
                await socket.send_text(chunk.decode())
        except (WebSocketDisconnect, OSError):
            pass

    @property
    def routes(self) -> list[Route | WebSocketRoute]:
        return [
            Route("/stream", self.stream),
            Route("/live", self.live),
            Route("/whole", self.whole),
            WebSocketRoute("/socket", self.socket),
        ]


def run_client(
    loop: Callable[[], asyncio.AbstractEventLoop],
    path: str,
    client: Callable[[StreamingApp, uvicorn.Server, socket.socket], Awaitable[None]],
) -> None:
    """Run a server and `client`, whose socket has a small receive buffer and has requested `path`."""

    async def run() -> None:
        streaming_app, listening = StreamingApp(), socket.create_server(("127.0.0.1", 0))
        set_tcp_user_timeout(listening, slow_client.TCP_USER_TIMEOUT_SECONDS)
        config = uvicorn.Config(
            Starlette(routes=streaming_app.routes),
            http=Connection,
            ws=WebSocketProtocol,
            log_config=None,
            lifespan="off",
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        head = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (path.encode(), UPGRADE if path == "/socket" else b"")
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await asyncio.get_running_loop().sock_connect(reader, listening.getsockname())
                await asyncio.get_running_loop().sock_sendall(reader, head)
                await client(streaming_app, server, reader)
        finally:
            reader.close()
            server.should_exit = True
            await serving

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def wait_until_closed(server: uvicorn.Server) -> None:
    """Wait until the server has no connection."""
    while server.server_state.connections:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("path", ["/stream", "/live", "/whole", "/socket", "/stream?pieces=1000"])
def test_a_client_that_reads_nothing_is_disconnected(
    loop: Callable[[], asyncio.AbstractEventLoop],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """This holds for every kind of response, even a complete one that is only unread, and is logged once."""
    monkeypatch.setattr(slow_client, "MAX_STALL_SECONDS", 0.2)
    caplog.set_level("INFO")

    async def client(streaming_app: StreamingApp, server: uvicorn.Server, _: socket.socket) -> None:
        while not server.server_state.connections:
            await asyncio.sleep(0.01)
        await wait_until_closed(server)
        if path != "/whole":
            await streaming_app.ended.wait()

    run_client(loop, path, client)
    assert [record.message for record in caplog.records if record.name.startswith("carousel")] == [
        "The connection is closed because its client read nothing for 0.2 s."
    ]
    assert "Traceback" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("path", ["/stream", "/socket"])
def test_a_client_that_reads_slowly_is_served(
    loop: Callable[[], asyncio.AbstractEventLoop], path: str, monkeypatch: pytest.MonkeyPatch
):
    """It is served for much longer than a client may read nothing, by the server and by the kernel."""
    monkeypatch.setattr(slow_client, "MAX_STALL_SECONDS", 1.0)
    monkeypatch.setattr(slow_client, "TCP_USER_TIMEOUT_SECONDS", 1.0)

    async def client(streaming_app: StreamingApp, server: uvicorn.Server, reader: socket.socket) -> None:
        received = 0
        for _ in range(40):
            received += len(await asyncio.get_running_loop().sock_recv(reader, 1000))
            await asyncio.sleep(0.1)
        assert received > 20_000 and server.server_state.connections and not streaming_app.ended.is_set()

    run_client(loop, path, client)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a system without a patience of its own")
def test_the_kernel_timeout_is_restored_when_the_connection_ends():
    """The kernel would otherwise keep unsent data for as long as the other side responds."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            set_tcp_user_timeout(listening, 60.0)
            with socket.create_connection(listening.getsockname()) as theirs:
                ours, _ = listening.accept()
                transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
                waiting = slow_client.SlowClientGuard(transport)
                timeouts = []
                for action in (lambda: None, waiting.begin, waiting.end):
                    action()
                    timeouts.append(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
                transport.abort()
                theirs.close()
                assert timeouts == [60_000, 0, 60_000]

    asyncio.run(run())
