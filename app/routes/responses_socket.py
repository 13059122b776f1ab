"""/v1/responses: WebSocket of responses."""

from __future__ import annotations

from collections.abc import Callable

from starlette.websockets import WebSocket

from app.admission.body_budget import BodyMemory
from app.http.message_memory import HANDLED_MEMORY
from app.observe.request_log import REQUEST_ID
from app.routes.elsewhere import Elsewhere
from app.routes.responses_session import ResponsesSession
from app.routes.socket_loop import check_handshake, offered_key, run, sender
from app.routes.text import resume_seconds_of
from app.service import Service
from app.streams.tail import direct_write_of


async def responses_socket(socket: WebSocket) -> None:
    """Serve the responses of one connection until the client leaves."""
    handshake = await check_handshake(socket)
    resume_seconds = resume_seconds_of(socket)
    with handshake.opened():
        session = ResponsesSession(
            handshake.service,
            handshake.tenant,
            sender(socket),
            direct_write_of(socket.scope),
            socket.scope[REQUEST_ID],
            resume_seconds,
            _detach_of(socket),
            _elsewhere(socket, handshake.service),
        )
        await run(socket, session, handshake.subprotocol)


def _elsewhere(socket: WebSocket, service: Service) -> Elsewhere | None:
    """Return the questions of a client to other API processes, with its key as requests over HTTP have it."""
    if service.siblings is None:
        return None
    headers = socket.scope["headers"]
    if (key := offered_key(socket)) is not None:
        own = [(b"authorization", f"Bearer {key}".encode("latin-1"))]
        headers = [header for header in headers if header[0] != b"authorization"] + own
    return Elsewhere(service.siblings, {**socket.scope, "headers": headers})


def _detach_of(socket: WebSocket) -> Callable[[], BodyMemory | None]:
    """Return the function described at `HANDLED_MEMORY`; one that returns nothing if the server has none."""

    def detach() -> BodyMemory | None:
        extension = socket.scope["extensions"].get(HANDLED_MEMORY)
        return None if extension is None else extension["detach"]()

    return detach
