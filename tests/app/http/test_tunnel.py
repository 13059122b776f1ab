"""WebSockets that one API process passes on to another one, over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close

from app.http import sibling_middleware
from app.http.connection import Connection
from app.http.sibling_middleware import SESSION_HEADER, SiblingMiddleware, takes_up_session
from app.http.siblings import LOOPBACK, Siblings
from app.http.websocket import LOST_EXTENSION, WebSocketProtocol
from tests.limits import HANG_SECONDS

MESSAGE = "a" * 100_000
MANY = 1000  # messages, more than all buffers have room for
PATH = "/v1/realtime"


class Process:
    """API process that has some sessions. A session echoes texts, floods its client, waits, or closes."""

    def __init__(self, index: int, ports: list[int], sessions: tuple[str, ...]) -> None:
        self.sessions = sessions
        self.sent = 0
        self.clients: list[str] = []
        self.ends: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()  # close code, and whether the connection was lost
        self.siblings = Siblings(index, ports)
        app = Starlette(
            routes=[WebSocketRoute(PATH, self._serve)],
            middleware=[Middleware(SiblingMiddleware, siblings=self.siblings)],
        )
        self.server = uvicorn.Server(
            uvicorn.Config(app, http=Connection, ws=WebSocketProtocol, log_config=None, lifespan="off")  # type: ignore[arg-type]
        )

    async def _serve(self, websocket: WebSocket) -> None:
        session = websocket.query_params.get("session", "")
        if session == "full" in self.sessions:
            await websocket.send_denial_response(JSONResponse({"error": {"code": "full"}}, 429, {"Retry-After": "5"}))
            return
        if session not in self.sessions:
            await websocket.send_denial_response(JSONResponse({"error": {"code": "session_not_found"}}, 404))
            return
        assert websocket.client is not None
        self.clients.append(websocket.client.host)
        await websocket.accept("realtime" if "realtime" in websocket.scope["subprotocols"] else None)
        try:
            while session == "flood" and self.sent < MANY:
                await websocket.send_text(MESSAGE)
                self.sent += 1
            while session == "deaf" and self.sessions:
                await asyncio.sleep(0.01)
            while True:
                text = await websocket.receive_text()
                if text == "close":
                    await websocket.close(4001, "enough")
                await websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            code = error.code if isinstance(error, WebSocketDisconnect) else 0
            self.ends.put_nowait((code, LOST_EXTENSION in websocket.scope["extensions"]))


@asynccontextmanager
async def service() -> AsyncIterator[tuple[Process, Process, str]]:
    """Yield two processes, of which the second one has all sessions, and the address of the first one."""
    async with AsyncExitStack() as stack:
        internal = [socket.create_server((LOOPBACK, 0)) for _ in range(2)]
        ports = [sock.getsockname()[1] for sock in internal]
        public = socket.create_server((LOOPBACK, 0))
        processes = [Process(0, ports, ()), Process(1, ports, ("echo", "flood", "deaf", "full"))]
        for process, sockets in zip(processes, ([internal[0], public], [internal[1]]), strict=True):
            serving = asyncio.create_task(process.server.serve(sockets=sockets))
            stack.push_async_callback(stop, process.server, serving)
            while not process.server.started:
                await asyncio.sleep(0.01)
        yield processes[0], processes[1], f"ws://{LOOPBACK}:{public.getsockname()[1]}{PATH}"


async def stop(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    server.should_exit = server.force_exit = True
    await asyncio.wait_for(serving, HANG_SECONDS)


@asynccontextmanager
async def opened(url: str, session: str, **options) -> AsyncIterator[ClientConnection]:
    async with (
        asyncio.timeout(HANG_SECONDS),
        connect(f"{url}?session={session}", max_size=None, close_timeout=1, compression=None, **options) as client,
    ):
        yield client


async def test_messages_pass_in_both_directions():
    """Of any size and in fragments, with the client's address and subprotocol."""
    chance = random.Random(5)
    async with service() as (first, other, url), opened(url, "echo", subprotocols=["realtime"]) as client:
        assert (first.siblings.websockets, other.siblings.websockets) == (1, 0)
        assert client.subprotocol == "realtime" and other.clients == [LOOPBACK]
        for size in (0, 1, 125, 126, 70_000, 900_000):
            text = "".join(chance.choices("abcdé\n", k=size))
            await client.send(text)
            assert await client.recv() == text
            await client.send([text[: size // 3], text[size // 3 :]])
            assert await client.recv() == text
        await (await client.ping())


async def test_a_client_that_does_not_wait_for_the_answer_is_understood():
    """Its first frame comes with the handshake."""
    async with service() as (_, other, url), asyncio.timeout(HANG_SECONDS):
        port = int(url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        head = b"GET %s?session=echo HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        key = b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        writer.write(head % PATH.encode() + key + b"\x81\x82\0\0\0\0hi")
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        writer.transport.abort()
        assert (await other.ends.get())[1]


async def test_closes_and_losses_are_passed_on():
    """A session is kept if the client has lost its connection, and not if it has closed it."""
    async with service() as (first, other, url):
        async with opened(url, "echo") as client:
            await client.send("close")
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        assert closed.value.rcvd == Close(4001, "enough")
        await other.ends.get()
        async with opened(url, "echo") as client:
            await client.close(4002)
        assert await asyncio.wait_for(other.ends.get(), HANG_SECONDS) == (4002, False)
        async with opened(url, "echo") as client:
            client.transport.abort()
        assert (await asyncio.wait_for(other.ends.get(), HANG_SECONDS))[1]
        async with opened(url, "echo") as client:
            await stop_connections(other)
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
            assert closed.value.rcvd is None
        while first.siblings.websockets:
            await asyncio.sleep(0.01)


async def stop_connections(process: Process) -> None:
    """Cut the connections of a process, as its death does."""
    for connection in list(process.server.server_state.connections):
        connection.transport.abort()


async def test_a_client_that_reads_nothing_holds_the_session_up():
    """Its messages take bounded memory, and come when it reads again."""
    async with service() as (_, other, url), opened(url, "flood") as client:
        before = -1
        while before != other.sent:
            before = other.sent
            await asyncio.sleep(0.5)
        assert 0 < other.sent < MANY / 2
        for _ in range(MANY):
            assert len(await client.recv()) == len(MESSAGE)


async def test_a_session_that_reads_nothing_holds_the_client_up():
    """Frames of the client take bounded memory in both processes."""
    async with service() as (first, other, url), opened(url, "deaf") as client:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await client.send(MESSAGE)
                sent += 1

        flooding, before = asyncio.create_task(flood()), -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent < MANY
        [connection] = first.server.server_state.connections
        assert len(connection._raw._received) < 1 << 20
        flooding.cancel()
        client.transport.abort()
        other.sessions = ()


@pytest.mark.parametrize(("session", "status"), [("full", 429), ("none", 404)])
async def test_a_refusal_is_passed_on(session: str, status: int):
    """That of the process that has the session, and else this one's."""
    async with service() as (_, _, url):
        with pytest.raises(InvalidStatus) as refused:
            async with opened(url, session):
                pass
        assert refused.value.response.status_code == status
        assert (status == 429) is (refused.value.response.headers.get("Retry-After") == "5")


async def test_a_session_of_a_process_that_cannot_be_asked_may_be_taken_up_later(monkeypatch):
    """The refusal has the status for that."""
    monkeypatch.setattr(sibling_middleware, "HELD_SECONDS", 0.0)
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    async with service() as (first, _, url):
        first.siblings._ports = [first.siblings._ports[0], port]
        with pytest.raises(InvalidStatus) as refused:
            async with opened(url, "echo"):
                pass
        assert (refused.value.response.status_code, refused.value.response.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize(
    ("path", "query", "headers", "takes_up"),
    [
        (PATH, b"model=m&session=sess_a", [], True),
        (f"{PATH}/", b"session=sess_a", [], True),
        (PATH, b"model=m", [(SESSION_HEADER, b"sess_a")], True),
        (PATH, b"model=session", [], False),
        ("/v1/responses", b"session=sess_a", [], False),
    ],
)
def test_a_websocket_that_names_its_session_may_be_passed_on(path: str, query: bytes, headers: list, takes_up: bool):
    scope = {"type": "websocket", "path": path, "query_string": query, "headers": headers}
    assert takes_up_session(scope) is takes_up
