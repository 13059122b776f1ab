"""Loop of a WebSocket: handshake, frames, idle limit and close codes, the same for every protocol.

A session handles the frames. It sends through two functions: one waits until a message can be sent, the other writes
messages at once or not at all (`app.streams.tail`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from app.admission.addresses import client_network
from app.admission.tenants import Tenant
from app.errors import ApiError
from app.http.message_memory import MESSAGE_MEMORY
from app.http.security import authenticate
from app.http.websocket import CLOSE_CODE_EXTENSION, FLOOD_CLOSE_CODE, LOST_EXTENSION
from app.routes import get_service
from app.service import Service

MAX_SLEEP_SECONDS = 3600.0  # an event loop accepts no infinite delay
KEY_PROTOCOL = "openai-insecure-api-key."
SUBPROTOCOL = "realtime"  # that browsers offer beside the one with their key, as they can send no header

Send = Callable[[bytes], Awaitable[None]]
Write = Callable[[list[bytes]], bool]


class SocketSession(Protocol):
    """State of one client, which handles its frames."""

    service: Service
    tenant: Tenant

    @property
    def idle_seconds(self) -> float:
        """Return the time since the client or the server had something to send; 0 during an answer."""
        ...

    async def open(self) -> None:
        """Send the first events."""
        ...

    async def handle_frame(self, text: str) -> None:
        """Handle one frame. A refused frame gets an error, and the session continues."""
        ...

    async def ended(self) -> str:
        """Return when the connection must end, with the reason; empty if the client cannot read it."""
        ...

    async def detach(self) -> None:
        """Stop sending, because the connection has ended."""
        ...

    def release(self, *, is_lost: bool) -> None:
        """Release the session. is_lost: the connection ended without a close frame of the client."""
        ...


@dataclass(frozen=True, slots=True)
class Handshake:
    """Accepted handshake, before the upgrade is answered."""

    socket: WebSocket
    service: Service
    tenant: Tenant
    network: str
    subprotocol: str | None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count the WebSocket while it is open, and reserve memory for its messages."""
        extensions = self.socket.scope.setdefault("extensions", {})
        extensions[MESSAGE_MEMORY] = {"memory": partial(self.service.bodies.memory, self.tenant.id)}
        try:
            with self.service.websockets.opened(self.tenant):
                yield
        finally:
            if extensions.get(CLOSE_CODE_EXTENSION) == {"code": FLOOD_CLOSE_CODE}:
                self.service.websockets.count_flood(self.tenant, self.network)


async def check_handshake(socket: WebSocket) -> Handshake:
    """Return the handshake of a client that may open a WebSocket. Raises `ApiError`, which is sent as an HTTP error
    instead of the upgrade: before it a connection costs little.
    """
    service = get_service(socket)
    tenant = authenticate(socket, service.settings, key=offered_key(socket))
    service.check_model(socket.query_params.get("model"))
    service.check_restored()  # what the client asks for would be refused until then
    network = client_network(socket.scope.get("client"))
    if delay := service.websockets.delay(tenant, network):
        await asyncio.sleep(delay)
    try:
        service.websockets.check(tenant, network)
    except ApiError as error:
        service.metrics.count_refusal(tenant, tenant.highest_class, error.code or "other")
        raise
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in _offered(socket) else None
    return Handshake(socket, service, tenant, network, subprotocol)


def offered_key(socket: WebSocket) -> str | None:
    """Return the key that a client offers as a subprotocol, if any."""
    return next((each.removeprefix(KEY_PROTOCOL) for each in _offered(socket) if each.startswith(KEY_PROTOCOL)), None)


def _offered(socket: WebSocket) -> list[str]:
    return [protocol.strip() for protocol in socket.headers.get("sec-websocket-protocol", "").split(",")]


def sender(socket: WebSocket) -> Send:
    """Return the function that waits until a message is sent. It raises `WebSocketDisconnect`."""

    async def send(message: bytes) -> None:
        try:
            await socket.send_text(message.decode())
        except (RuntimeError, OSError) as error:  # raised by Starlette and uvicorn if the client has just left
            raise WebSocketDisconnect(1006) from error

    return send


async def run(socket: WebSocket, session: SocketSession, subprotocol: str | None) -> None:
    """Run a session until its client leaves, is refused or was idle for too long."""
    tasks: list[asyncio.Task[None] | asyncio.Task[str]] = []
    was_accepted = False
    closing = ""
    try:
        await socket.accept(subprotocol=subprotocol)
        was_accepted = True
        limit = session.tenant.websocket_idle_timeout or session.service.settings.websocket_idle_timeout
        serving = asyncio.create_task(_serve(socket, session))
        idling = asyncio.create_task(_wait_until_idle(session, limit))
        ending = asyncio.create_task(session.ended())
        tasks += (serving, idling, ending)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        elif ending.done():
            closing = ending.result()
        else:
            closing = f"The session was idle for {limit:g} s."
    except WebSocketDisconnect:
        return
    finally:
        try:
            await _end(tasks, session)
        finally:
            session.release(is_lost=LOST_EXTENSION in socket.scope["extensions"] or not was_accepted)
        if closing:
            await _close(socket, 1000, closing)


async def _end(tasks: Collection[asyncio.Task[None] | asyncio.Task[str]], session: SocketSession) -> None:
    """Detach a session once its tasks have ended, or at once if this is cancelled: its memory is always returned."""
    try:
        await cancel_all(tasks)
    finally:
        await session.detach()


async def cancel_all(tasks: Collection[asyncio.Task[None] | asyncio.Task[str]]) -> None:
    """Cancel tasks, and wait until they have ended or failed."""
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks)
        for task in done:
            if not task.cancelled():
                task.exception()  # marks it as read, so that asyncio does not log it


async def _serve(socket: WebSocket, session: SocketSession) -> None:
    """Handle frames from the client until it leaves."""
    await session.open()
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("text") is None:
            await _close(socket, 1003, "Only text frames are supported.")
            return
        tenant = session.service.current_tenant(session.tenant)
        if tenant is None:
            await _close(socket, 1008, "The API key of this session was revoked.")
            return
        session.tenant = tenant  # its limits may have changed
        await session.handle_frame(message["text"])


async def _wait_until_idle(session: SocketSession, limit: float) -> None:
    """Return when the session has been idle for `limit` seconds, which may be infinite."""
    left = limit
    while left > 0:
        await asyncio.sleep(min(left, MAX_SLEEP_SECONDS))
        left = limit - session.idle_seconds


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    """Close with a reason, if the client is still there; a frame has room for 123 bytes of it."""
    with suppress(RuntimeError, OSError, WebSocketDisconnect):
        await socket.close(code, reason.encode()[:120].decode(errors="ignore"))
