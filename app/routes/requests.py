"""/v1/requests/{id}: timeline of a request, while it runs and for a while after, and changes while it runs."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.generation.generation import Generation
from app.protocols.request_changes import RequestChange
from app.request_changes import change_request
from app.routes import adopt_missing, authenticate_request, get_service, parse_stream_id, restoring
from app.routes.conversations import read_body
from app.service import Service
from app.streams.stream_log import CursorError
from app.text.text_model import TextModel
from engine.cache_note import CacheMiss, CacheNote
from engine.types import ServiceClass, WaitReason


async def request_by_id(request: Request) -> Response:
    """GET /v1/requests/{id}: return the timeline of the client's own request. POST: pause or resume it, or move it to
    another service tier.
    """
    change = None
    if request.method == "POST":
        change, _ = await read_body(request, RequestChange, lambda _: None)
    generation = await _find(request)
    if change is not None:
        tenant = authenticate_request(request)
        await change_request(get_service(request), generation, tenant, change.is_paused, change.service_class)
    body = timeline_body(generation, get_service(request).text) | _place_in_line(get_service(request), generation)
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _find(request: Request) -> Generation:
    """Return the client's own request. Raises `ApiError` (404, 503)."""
    owner = authenticate_request(request).owner
    stream_id = parse_stream_id(request.path_params["request_id"])
    service = get_service(request)
    await adopt_missing(service, stream_id, owner)
    try:
        return service.registry.get(stream_id, owner)
    except CursorError as error:
        if error.status == 503:
            raise restoring(error) from None
        given = request.path_params["request_id"][:80]
        raise ApiError(
            404, f"request {given!r} does not exist or has expired", param="request_id", code="request_not_found"
        ) from None


def timeline_body(generation: Generation, text: TextModel) -> dict[str, Any]:
    """Return the body of the answer."""
    log, request = generation.log, generation.request
    return {
        "id": log.id,
        "object": "carousel.request",
        "created": int(log.created),
        "class": request.service_class.label,
        "state": _state(generation),
        "prompt_tokens": len(request.prompt),
        "cached_tokens": generation.cached_tokens,
        "cache": None if generation.timeline.cache_note is None else _cache_view(generation.timeline.cache_note, text),
        "completion_tokens": generation.completion_tokens,
        **generation.timeline.view(time.monotonic()),
    }


def _cache_view(note: CacheNote, text: TextModel) -> dict[str, Any]:
    """Return an engine's note about the prefix cache as clients receive it."""
    is_compared = note.reason is not CacheMiss.UNKNOWN
    return {
        "continues": note.continues or None,
        "kept_seconds": round(note.kept_seconds, 1) if is_compared else None,
        "expected_tokens": note.expected_tokens,
        "reason": None if note.reason is None else note.reason.value,
        "by": None if note.beneficiary is None else ServiceClass(note.beneficiary).label,
        "differs_at": note.differs_at,
        "before": text.decode(note.before, skip_special_tokens=False),
        "after": text.decode(note.after, skip_special_tokens=False),
    }


def _place_in_line(service: Service, generation: Generation) -> dict[str, Any]:
    """Return the position of a waiting request, and the time in which it probably starts, if that is known."""
    status = generation.log.status
    if status is None or not status.position or _state(generation) != "queued":
        return {}
    seconds = service.admission.expected_start(status.position)
    wait = {} if math.isinf(seconds) else {"wait_ms": round(1000 * seconds)}
    return {"position": status.position, **wait}


def _state(generation: Generation) -> str:
    """Return the state of a request. The engine may not have reported the last pause or its end yet."""
    status = generation.log.status
    if generation.log.is_closed:
        return "ended"
    if generation.request.is_paused:
        return "paused"
    return "queued" if status is None or status.cause is WaitReason.CLIENT else status.state
