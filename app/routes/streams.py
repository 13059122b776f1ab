"""/v1/streams/{id}: come back to an answer, or stop it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.routes import owner_of, service_of
from app.routes.answers import stream
from app.streams import CursorRefused


async def resume(request: Request) -> Response:
    """Follow a stream behind `Last-Event-ID` (or `?starting_after=`; the header wins); without one, from its start."""
    registry = service_of(request).registry
    cursor = request.headers.get("last-event-id") or request.query_params.get("starting_after")
    try:
        generation = registry.get(request.path_params["stream_id"], owner_of(request))
        return stream(generation, registry.position(generation, cursor) if cursor else 0)
    except CursorRefused as error:
        raise ApiError(error.status, str(error), param="starting_after", code="cursor_refused") from None


async def stop(request: Request) -> Response:
    """End an answer now; what was said stays readable. Stopping what has ended is no error."""
    try:
        generation = service_of(request).registry.get(request.path_params["stream_id"], owner_of(request))
    except CursorRefused as error:
        raise ApiError(error.status, str(error), code="not_found") from None
    generation.cancel()
    return Response(status_code=204)
