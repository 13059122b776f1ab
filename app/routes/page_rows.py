"""/v1/page/rows: rows in which the chat page keeps a key's conversations, so that other browsers have them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.http.security import read_json_body
from app.protocols.page_rows import (
    DEFAULT_ROWS,
    MAX_NUMBER,
    MAX_ROWS,
    PageRowsRequest,
    joined_body,
    list_body,
)
from app.routes import authenticate_request, get_service
from app.routes.listing import number
from app.routes.paced_route import PacedRoute
from app.service import Service

if TYPE_CHECKING:
    from app.store.page_rows import PageRows


async def page_rows(request: Request) -> Response:
    """GET /v1/page/rows: return the rows of the key that have changed after a number. POST: join rows."""
    tenant, service = authenticate_request(request), get_service(request)
    rows, caller = _rows_of(service, tenant), Caller(tenant.id)
    if request.method == "POST":
        with service.bodies.memory(caller.tenant) as memory:
            body = await read_json_body(request, service.settings, memory)
            parsed = await service.prompts.parse(PageRowsRequest, body, caller)
            content = joined_body(await rows.join(parsed.page_rows(), tenant.owner, caller))
    else:
        after = number(request, "after", 0, 0, MAX_NUMBER)
        limit = number(request, "limit", DEFAULT_ROWS, 1, MAX_ROWS)
        content = list_body(await rows.after(after, limit, tenant.owner, caller))
    return Response(content, media_type="application/json")


def _rows_of(service: Service, tenant: Tenant) -> PageRows:
    """Return the rows of the server. Raises `ApiError`: 403 without a key, 404 without a store."""
    if not tenant.digest:
        message = "rows of the chat page are kept by API key, and this server has none; --api-key gives it some"
        raise ApiError(403, message, code="page_rows_need_key")
    if service.state_file is None:
        message = "rows of the chat page are kept in the store, and this server has none; --store FILE gives it one"
        raise ApiError(404, message, code="page_rows_need_store")
    return service.state_file.page_rows


ROUTES = (PacedRoute("/v1/page/rows", page_rows, methods=["GET", "POST"]),)
