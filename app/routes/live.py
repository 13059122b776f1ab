"""GET /v1/engine/events: state of the engine for the engine page."""

from __future__ import annotations

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from app.http.answer_stream import KEEP_ALIVE_SECONDS, STREAM_HEADERS
from app.routes import authenticate_request, get_service

SHUTDOWN_GRACE_SECONDS = 2.0


async def engine_events(request: Request) -> Response:
    """Stream snapshots as server-sent events, several per second while requests run, without texts and keys. An event
    `engine` has the phase of an engine that is not ready.
    """
    tenant, service = authenticate_request(request), get_service(request)
    return EventSourceResponse(
        service.live.watch(lambda: service.current_tenant(tenant) is not None),
        headers=STREAM_HEADERS,
        ping=KEEP_ALIVE_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="ping"),
        shutdown_grace_period=SHUTDOWN_GRACE_SECONDS,
    )
