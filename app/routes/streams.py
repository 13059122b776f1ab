"""/v1/streams/{id}: resume or stop an answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.protocols.responses_encoder import ResponsesEncoder
from app.routes import adopt_missing, authenticate_request, get_service, parse_stream_id, restoring
from app.routes.responses import stream
from app.streams.stream_log import CursorError


async def get_stream(request: Request) -> Response:
    """Handle GET, which resumes an answer, and DELETE, which stops it."""
    owner = authenticate_request(request).owner
    service, stream_id = get_service(request), parse_stream_id(request.path_params["stream_id"])
    registry = service.registry
    await adopt_missing(service, stream_id, owner)
    try:
        if request.method == "DELETE":
            # the output so far stays readable; stopping an ended answer is no error
            registry.get(stream_id, owner).cancel()
            return Response(status_code=204)
        cursor = request.headers.get("last-event-id") or request.query_params.get("starting_after")
        generation, after = registry.resume(stream_id, owner, cursor or None)
    except CursorError as error:
        if error.status == 404:
            raise ApiError(404, str(error), code="stream_not_found") from None
        if error.status == 503:
            raise restoring(error) from None
        raise ApiError(error.status, str(error), param="starting_after", code="cursor_refused") from None
    if isinstance(generation.encoder, ResponsesEncoder):
        message = f"{stream_id} is a response: follow GET /v1/responses/resp_{stream_id}?stream=true instead"
        raise ApiError(404, message, code="stream_not_found")
    return stream(generation, after)
