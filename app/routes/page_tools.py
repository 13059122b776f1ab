"""/v1/page/tools: tools of the MCP servers that the operator has named, for the chat page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.http.disconnect import run_unless_disconnected
from app.http.security import read_json_body
from app.protocols.page_tools import ToolCallRequest
from app.routes import authenticate_request, get_service, json_response
from app.routes.paced_route import PacedRoute

if TYPE_CHECKING:
    from app.mcp.servers import ToolServers


async def page_tools(request: Request) -> Response:
    """GET /v1/page/tools: list the tools of each server, or the reason why it has none."""
    authenticate_request(request)
    servers = await _servers(request).listed()
    return await json_response({"object": "list", "data": servers}, sum(len(each.tools) for each in servers))


async def call_tool(request: Request) -> Response:
    """POST /v1/page/tools/call: run a tool and return its result. A client that disconnects cancels the call."""
    tenant, service = authenticate_request(request), get_service(request)
    servers = _servers(request)
    with service.bodies.memory(tenant.id) as memory:
        body = await read_json_body(request, service.settings, memory)
        parsed = await service.prompts.parse(ToolCallRequest, body, Caller(tenant.id))
    work = servers.call(parsed.server, parsed.name, parsed.arguments, tenant.id)
    result = await run_unless_disconnected(request.receive, work)
    return await json_response(result, 0)


def _servers(request: Request) -> ToolServers:
    """Return the servers. Raises `ApiError` (404) without any."""
    servers: ToolServers | None = request.app.state.tool_servers
    if servers is None:
        message = "this server offers no tools of MCP servers; --mcp URL names one"
        raise ApiError(404, message, code="page_tools_need_mcp")
    return servers


ROUTES = (
    PacedRoute("/v1/page/tools", page_tools, methods=["GET"]),
    PacedRoute("/v1/page/tools/call", call_tool, methods=["POST"]),
)
