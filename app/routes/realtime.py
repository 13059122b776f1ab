"""/v1/realtime: WebSocket of a realtime session."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from app.errors import ApiError
from app.observe.request_log import REQUEST_ID
from app.routes.realtime_session import Session, new_id
from app.routes.socket_loop import Handshake, check_handshake, run, sender
from app.streams.tail import direct_write_of

SESSION_HEADER = "X-Carousel-Session"  # id of the session to take up, as ?session= has it


async def realtime(socket: WebSocket) -> None:
    """Serve one session until the client leaves."""
    handshake = await check_handshake(socket)
    resumed = socket.query_params.get("session") or socket.headers.get(SESSION_HEADER)
    if resumed is not None:
        handshake.service.sessions.check(resumed, handshake.tenant.owner)
    with handshake.opened():
        await run(socket, await _session(handshake, resumed), handshake.subprotocol)


async def _session(handshake: Handshake, resumed: str | None) -> Session:
    """Return a new session, or the one to take up. Raises `ApiError` (404)."""
    scope, service, tenant = handshake.socket.scope, handshake.service, handshake.tenant
    send, write, request_id = sender(handshake.socket), direct_write_of(scope), scope[REQUEST_ID]
    if resumed is None:
        session_id, file = new_id("sess"), service.state_file
        recorder = None if file is None else file.sessions.recorder(session_id)
        session = Session(service, tenant, send, write, request_id, session_id, recorder=recorder)
    else:
        session = await service.sessions.take(resumed, tenant.owner)
        session.attach(tenant, send, write, request_id)
    service.sessions.connect(session)
    return session


async def upgrade_required(_: Request) -> Response:
    """Refuse a request without an upgrade: an error, or a proxy that did not forward it (RFC 9110, 15.5.22)."""
    raise ApiError(
        426,
        "/v1/realtime needs a WebSocket: send Upgrade: websocket, and configure proxies to forward it",
        headers={"Connection": "Upgrade", "Upgrade": "websocket"},
    )
