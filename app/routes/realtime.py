"""/v1/realtime: WebSocket of a realtime session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.admission.addresses import client_network
from app.admission.tenants import Tenant
from app.errors import ApiError
from app.http.message_memory import MESSAGE_MEMORY
from app.http.security import authenticate
from app.http.websocket import CLOSE_CODE_EXTENSION, FLOOD_CLOSE_CODE, LOST_EXTENSION
from app.observe.request_log import REQUEST_ID
from app.routes import get_service
from app.routes.realtime_session import Session, cancel_all, new_id
from app.service import Service
from app.streams.tail import direct_write_of

MAX_SLEEP_SECONDS = 3600.0  # an event loop accepts no infinite delay
SESSION_HEADER = "X-Carousel-Session"  # id of the session to take up, as ?session= has it
KEY_PROTOCOL = "openai-insecure-api-key."


async def realtime(socket: WebSocket) -> None:
    """Serve one session until the client leaves. A refused client gets an HTTP error instead of the upgrade; before the
    upgrade a connection costs little.
    """
    service = get_service(socket)
    offered = [protocol.strip() for protocol in socket.headers.get("sec-websocket-protocol", "").split(",")]
    key = next((p.removeprefix(KEY_PROTOCOL) for p in offered if p.startswith(KEY_PROTOCOL)), None)
    tenant = authenticate(socket, service.settings, key=key)
    service.check_model(socket.query_params.get("model"))
    _ = service.info
    network = client_network(socket.scope.get("client"))
    if delay := service.websockets.delay(tenant, network):
        await asyncio.sleep(delay)
    try:
        service.websockets.check(tenant, network)
    except ApiError as error:
        service.metrics.count_refusal(tenant, tenant.highest_class, error.code or "other")
        raise
    resumed = socket.query_params.get("session") or socket.headers.get(SESSION_HEADER)
    if resumed is not None:
        service.sessions.check(resumed, tenant.owner)
    extensions = socket.scope.setdefault("extensions", {})
    extensions[MESSAGE_MEMORY] = {"memory": partial(service.bodies.memory, tenant.id)}
    try:
        with service.websockets.opened(tenant):
            session = await _session(socket, service, tenant, resumed)
            await _run(socket, session, "realtime" if "realtime" in offered else None)
    finally:
        if extensions.get(CLOSE_CODE_EXTENSION) == {"code": FLOOD_CLOSE_CODE}:
            service.websockets.count_flood(tenant, network)


async def _session(socket: WebSocket, service: Service, tenant: Tenant, resumed: str | None) -> Session:
    """Return a new session, or the one to take up. Raises `ApiError` (404)."""

    async def send(message: bytes) -> None:
        try:
            await socket.send_text(message.decode())
        except (RuntimeError, OSError) as error:  # raised by Starlette and uvicorn if the client has just left
            raise WebSocketDisconnect(1006) from error

    write, request_id = direct_write_of(socket.scope), socket.scope[REQUEST_ID]
    if resumed is None:
        session_id, file = new_id("sess"), service.state_file
        recorder = None if file is None else file.sessions.recorder(session_id)
        session = Session(service, tenant, send, write, request_id, session_id, recorder=recorder)
    else:
        session = await service.sessions.take(resumed, tenant.owner)
        session.attach(tenant, send, write, request_id)
    service.sessions.connect(session)
    return session


async def _run(socket: WebSocket, session: Session, subprotocol: str | None) -> None:
    """Run a session until its client leaves, is refused or was idle for too long. It is kept if only its connection was
    lost.
    """
    tasks: list[asyncio.Task[None]] = []
    was_accepted = False
    closing = ""
    try:
        await socket.accept(subprotocol=subprotocol)
        was_accepted = True
        limit = session.tenant.websocket_idle_timeout or session.service.settings.websocket_idle_timeout
        serving = asyncio.create_task(_serve(socket, session))
        idling = asyncio.create_task(_wait_until_idle(session, limit))
        tasks += (serving, idling, asyncio.create_task(_wait_for_end(session)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        elif session.displaced.is_set():
            closing = "The session was taken up by another connection."
        elif idling.done():
            closing = f"The session was idle for {limit:g} s."
    except WebSocketDisconnect:
        return
    finally:
        try:
            await cancel_all(tasks)
            await session.detach()
        finally:
            is_lost = session.displaced.is_set() or LOST_EXTENSION in socket.scope["extensions"] or not was_accepted
            is_lost |= session.service.draining and session.service.state_file is not None  # taken up after the restart
            session.service.sessions.release(session, keeps=is_lost and session.is_announced)
        if closing:
            await _close(socket, 1000, closing)


async def upgrade_required(_: Request) -> Response:
    """Refuse a request without an upgrade: an error, or a proxy that did not forward it (RFC 9110, 15.5.22)."""
    raise ApiError(
        426,
        "/v1/realtime needs a WebSocket: send Upgrade: websocket, and configure proxies to forward it",
        headers={"Connection": "Upgrade", "Upgrade": "websocket"},
    )


async def _serve(socket: WebSocket, session: Session) -> None:
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


async def _wait_for_end(session: Session) -> None:
    """Return when the client accepts no more data, or has another connection."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (session.client_stalled, session.displaced)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def _wait_until_idle(session: Session, limit: float) -> None:
    """Return when the session has been idle for `limit` seconds, which may be infinite."""
    left = limit
    while left > 0:
        await asyncio.sleep(min(left, MAX_SLEEP_SECONDS))
        left = limit - session.idle_seconds


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    """Close with a reason, if the client is still there; a frame has room for 123 bytes of it."""
    with suppress(RuntimeError, OSError, WebSocketDisconnect):
        await socket.close(code, reason.encode()[:120].decode(errors="ignore"))
