"""For how long a connection waits for its client to take what is written, over a real socket."""

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

from app import patience, sse
from app.connection import Connection
from app.patience import keep_unread
from app.websocket import WebSocketProtocol
from tests.app.test_connection import LOOPS

PIECE = b"data: %b\n\n" % (b"a" * 2000)
ENDLESS = 20_000  # pieces, of which no socket keeps as many
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class Served:
    """What is asked for, and how it ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.pieces = 0

    async def content(self, pieces: int = ENDLESS) -> AsyncIterator[bytes]:
        try:
            for _ in range(pieces):
                self.pieces += 1
                yield PIECE
                await asyncio.sleep(0)
        finally:
            self.ended.set()

    async def stream(self, request: Request) -> Response:
        return sse.EventStream(lambda _: self.content(int(request.query_params.get("pieces", ENDLESS))), lambda: None)

    async def live(self, _: Request) -> Response:
        return EventSourceResponse(self.content())

    async def whole(self, _: Request) -> Response:
        return Response(ENDLESS * PIECE)

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            async for piece in self.content():
                await socket.send_text(piece.decode())
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


def play(
    loop: Callable[[], asyncio.AbstractEventLoop],
    path: str,
    client: Callable[[Served, uvicorn.Server, socket.socket], Awaitable[None]],
) -> None:
    """A server, and a client with little room that has asked for `path`."""

    async def run() -> None:
        served, listening = Served(), socket.create_server(("127.0.0.1", 0))
        keep_unread(listening, patience.UNREAD_SECONDS)
        config = uvicorn.Config(
            Starlette(routes=served.routes), http=Connection, ws=WebSocketProtocol, log_config=None, lifespan="off"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        head = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (path.encode(), UPGRADE if path == "/socket" else b"")
        try:
            async with asyncio.timeout(20):
                await asyncio.get_running_loop().sock_connect(reader, listening.getsockname())
                await asyncio.get_running_loop().sock_sendall(reader, head)
                await client(served, server, reader)
        finally:
            reader.close()
            server.should_exit = True
            await serving

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def gone(server: uvicorn.Server) -> None:
    """Waits until there is no connection."""
    while server.server_state.connections:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("path", ["/stream", "/live", "/whole", "/socket", "/stream?pieces=1000"])
def test_who_takes_nothing_is_hung_up_on(
    loop: Callable[[], asyncio.AbstractEventLoop],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Whatever it had asked for, an answer that is complete but for what it has still to take too; and the server's log
    says so, once, and nothing else."""
    monkeypatch.setattr(patience, "SECONDS", 0.2)
    caplog.set_level("INFO")

    async def client(served: Served, server: uvicorn.Server, _: socket.socket) -> None:
        while not server.server_state.connections:
            await asyncio.sleep(0.01)
        await gone(server)
        if path != "/whole":
            await served.ended.wait()

    play(loop, path, client)
    assert [record.message for record in caplog.records if record.name.startswith("carousel")] == [
        "The connection is closed because its client read nothing for 0.2 s."
    ]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("path", ["/stream", "/socket"])
def test_who_takes_little_at_a_time_is_served(
    loop: Callable[[], asyncio.AbstractEventLoop], path: str, monkeypatch: pytest.MonkeyPatch
):
    """For many times as long as it may take nothing: by us, and by the system."""
    monkeypatch.setattr(patience, "SECONDS", 1.0)
    monkeypatch.setattr(patience, "UNREAD_SECONDS", 1.0)

    async def client(served: Served, server: uvicorn.Server, reader: socket.socket) -> None:
        heard = 0
        for _ in range(40):
            heard += len(await asyncio.get_running_loop().sock_recv(reader, 1000))
            await asyncio.sleep(0.1)
        assert heard > 20_000 and server.server_state.connections and not served.ended.is_set()

    play(loop, path, client)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a system without a patience of its own")
def test_what_is_left_of_a_connection_is_the_system_s_again():
    """It would keep it for as long as the other side lives."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            keep_unread(listening, 60.0)
            with socket.create_connection(listening.getsockname()) as theirs:
                ours, _ = listening.accept()
                transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
                waiting = patience.Patience(transport)
                asked = []
                for do in (lambda: None, waiting.begin, waiting.end):
                    do()
                    asked.append(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
                transport.abort()
                theirs.close()
                assert asked == [60_000, 0, 60_000]

    asyncio.run(run())
