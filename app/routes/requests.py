"""GET /v1/requests/{id}: timeline of a request, while it runs and for a while after."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.generation.generation import Generation
from app.routes import adopt_missing, authenticate_request, get_service, parse_stream_id, restoring
from app.streams.stream_log import CursorError


async def get_request_timeline(request: Request) -> Response:
    """Return the timeline of the client's own request."""
    owner = authenticate_request(request).owner
    stream_id = parse_stream_id(request.path_params["request_id"])
    service = get_service(request)
    await adopt_missing(service, stream_id, owner)
    try:
        generation = service.registry.get(stream_id, owner)
    except CursorError as error:
        if error.status == 503:
            raise restoring(error) from None
        given = request.path_params["request_id"][:80]
        raise ApiError(
            404, f"request {given!r} does not exist or has expired", param="request_id", code="request_not_found"
        ) from None
    return Response(msgspec.json.encode(timeline_body(generation)), media_type="application/json")


def timeline_body(generation: Generation) -> dict[str, Any]:
    """Return the body of the answer."""
    log, request = generation.log, generation.request
    state = "ended" if log.is_closed else log.status.state if log.status is not None else "queued"
    return {
        "id": log.id,
        "object": "carousel.request",
        "created": int(log.created),
        "class": request.service_class.label,
        "state": state,
        "prompt_tokens": len(request.prompt),
        "cached_tokens": generation.cached_tokens,
        "completion_tokens": generation.completion_tokens,
        **generation.timeline.view(time.monotonic()),
    }
