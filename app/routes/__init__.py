"""Route handlers. Each reads a request, calls the service and returns an answer; none accesses the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from app.admission.tenants import Tenant
from app.errors import ApiError
from app.http.security import authenticate
from app.observe.request_log import REQUEST_ID, client_request_id
from app.protocols.hosted_tools import IGNORED_TOOLS_HEADER, listed
from app.service import Service
from app.streams.stream_log import CursorError

log = logging.getLogger("carousel.requests")

MAX_INLINE_ITEMS = 4096  # of an answer that is encoded on the event loop


async def json_response(content: Any, items: int) -> Response:
    """Return a JSON response, encoded in a thread if it has many `items` (numbers, tokens, records)."""
    if items <= MAX_INLINE_ITEMS:
        body = msgspec.json.encode(content)
    else:
        body = await asyncio.to_thread(msgspec.json.encode, content)
    return Response(body, media_type="application/json")


def get_service(connection: HTTPConnection) -> Service:
    """Return the service of the application."""
    service: Service = connection.app.state.service
    return service


def with_ignored_tools(request: Request, response: Response, types: Sequence[str]) -> Response:
    """Return a response that names the tools of its request that this server does not run, and log them."""
    if types:
        response.headers[IGNORED_TOOLS_HEADER] = listed(types)
        # The ID under which the access log has the request.
        own_id = response.headers.get("X-Request-Id") or request.scope[REQUEST_ID]
        log_ignored_tools(client_request_id(request.scope["headers"]) or own_id, types)
    return response


def log_ignored_tools(request_id: str, types: Sequence[str]) -> None:
    """Log the tools of a request that this server does not run."""
    fields = {"request_id": request_id, "ignored_tools": listed(types)}
    log.info("request %s offers tools that this server does not run: %s", *fields.values(), extra={"fields": fields})


def parse_stream_id(name: str) -> str:
    """Return the stream's id from an id of a stream, an answer or a realtime response, which add a prefix."""
    return name.replace("_", "-").rpartition("-")[2]


def authenticate_request(connection: HTTPConnection) -> Tenant:
    """Return the tenant of a request. Raises `ApiError` (401)."""
    return authenticate(connection, get_service(connection).settings)


def restoring(error: CursorError) -> ApiError:
    """Return the error (503) for a stream that is being restored after a restart."""
    return ApiError(503, str(error), code="engine_unavailable", headers={"Retry-After": "1"})


async def adopt_missing(service: Service, stream_id: str, owner: str) -> None:
    """Continue an owner's answer here if its stream is not known, and another API process has lost it. Raises
    `ApiError` (503) if the other process still has it.
    """
    if service.adopt is not None and service.registry.get_any_owner(stream_id) is None:
        await service.adopt(stream_id, owner)
