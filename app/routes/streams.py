"""/v1/streams/{id}: resume or stop an answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.routes import service_of, stream_id_of, tenant_of
from app.routes.responses import stream
from app.streams.stream_log import CursorRefused


async def stream_of(request: Request) -> Response:
    """Handle GET, which resumes an answer, and DELETE, which stops it."""
    owner = tenant_of(request).owner
    registry, stream_id = service_of(request).registry, stream_id_of(request.path_params["stream_id"])
    try:
        if request.method == "DELETE":
            # the output so far stays readable; stopping an ended answer is no error
            registry.get(stream_id, owner).cancel()
            return Response(status_code=204)
        cursor = request.headers.get("last-event-id") or request.query_params.get("starting_after")
        generation, after = registry.find(stream_id, owner, cursor or None)
    except CursorRefused as error:
        if error.status == 404:
            raise ApiError(404, str(error), code="stream_not_found") from None
        raise ApiError(error.status, str(error), param="starting_after", code="cursor_refused") from None
    return stream(generation, after)
