"""ToolServers: the MCP servers of this process, their lists of tools, and the limits of calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from app.errors import ApiError
from app.mcp.addresses import ServerAddress
from app.mcp.endpoint import Endpoint, open_client
from app.mcp.errors import McpError, McpTimeout, RequestRefused
from app.mcp.session import Session
from app.mcp.tools import Tool, ToolList, ToolResult, cut, decode_page, decode_result

LIST_SECONDS = 15.0  # for all pages of a server's list
CALL_SECONDS = 120.0
FRESH_SECONDS = 60.0  # for which a list is used again
RETRY_SECONDS = 5.0  # after which a server without a list is asked again
MAX_PAGES = 20  # of a list
MAX_SESSIONS = 256  # of tenants with one server
MAX_TENANT_CALLS = 4  # at the same time
MAX_CALLS = 64

# Called with server, outcome (ok, tool_error, failed, timeout, left or refused) and seconds of each call.
Observe = Callable[[str, str, float], None]


class ServerTools(msgspec.Struct, frozen=True):
    """Tools of a server. error: sentence about why there are none, or fewer than it has."""

    name: str
    tools: list[Tool]
    error: str | None


@dataclass(slots=True)
class _Server:
    """One server, with a session for each tenant: state that a tool keeps in a session is that tenant's alone."""

    name: str
    endpoint: Endpoint
    listing: Session
    sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    tools: asyncio.Task[ServerTools] | None = None  # the last or current reading of its list
    expires: float = 0.0  # time at which the list is read again

    def session(self, tenant: str) -> Session:
        """Return the session of a tenant. The one that was not used for the longest time makes room for it."""
        session = self.sessions.pop(tenant, None) or Session(self.endpoint)
        self.sessions[tenant] = session
        if len(self.sessions) > MAX_SESSIONS:
            self.sessions.popitem(last=False)
        return session


class ToolServers:
    """All MCP servers that the operator has named."""

    def __init__(self, addresses: Sequence[ServerAddress], observe: Observe) -> None:
        self._observe = observe
        self._client: httpx2.AsyncClient = open_client()
        self._servers: dict[str, _Server] = {}
        for address in addresses:
            endpoint = Endpoint(address, self._client)
            self._servers[address.name] = _Server(address.name, endpoint, Session(endpoint))
        self._calls: Counter[str] = Counter()  # running ones, by tenant

    async def listed(self) -> list[ServerTools]:
        """Return the tools of each server, of which some may have an error instead."""
        return list(await asyncio.gather(*(self._tools(server) for server in self._servers.values())))

    async def call(self, server: str, tool: str, arguments: dict[str, Any], tenant: str) -> ToolResult:
        """Return the result of a call. An error of the tool is a result too.

        Raises `ApiError`: 404 for an unknown server, 429 and 503 beyond the limits, 502 and 504 if the server fails.
        """
        if (found := self._servers.get(server)) is None:
            names = ", ".join(map(repr, self._servers))
            message = f"server must be one of {names}, got {server[:80]!r}"
            raise ApiError(404, message, param="server", code="tool_server_not_found")
        with self._counted(found.name, tenant), self._observed(found.name) as outcome:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    params = {"name": tool, "arguments": arguments}
                    raw = await found.session(tenant).request("tools/call", params)
                    result = await asyncio.to_thread(decode_result, raw)
            except RequestRefused as error:  # for example for arguments that are not those of the schema
                result = ToolResult(cut(error.reason), is_error=True)
            outcome.text = "tool_error" if result.is_error else "ok"
            return result

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @contextmanager
    def _counted(self, server: str, tenant: str) -> Iterator[None]:
        """Count a running call. Raises `ApiError` beyond the limits."""
        is_tenant_limit = self._calls[tenant] >= MAX_TENANT_CALLS
        if is_tenant_limit or self._calls.total() >= MAX_CALLS:
            self._observe(server, "refused", 0.0)
            status, code, of, limit = (
                (429, "too_many_tool_calls", "this key", MAX_TENANT_CALLS)
                if is_tenant_limit
                else (503, "tool_calls_busy", "all keys", MAX_CALLS)
            )
            message = f"{limit} tool calls of {of} are running, and {limit} may at the same time; retry in 1 s"
            raise ApiError(status, message, code=code, headers={"Retry-After": "1"})
        self._calls[tenant] += 1
        try:
            yield
        finally:
            self._calls[tenant] -= 1
            if not self._calls[tenant]:
                del self._calls[tenant]

    @contextmanager
    def _observed(self, server: str) -> Iterator[_Outcome]:
        """Report the outcome of a call, and raise errors of the server as `ApiError`."""
        began, outcome = time.monotonic(), _Outcome()
        try:
            yield outcome
        except (TimeoutError, McpTimeout) as error:
            outcome.text = "timeout"
            reason = str(error) or f"did not answer within {CALL_SECONDS:g} s"
            raise ApiError(504, f"the tool server {server!r} {reason}", code="tool_timeout") from None
        except McpError as error:
            outcome.text = "failed"
            raise ApiError(502, f"the tool server {server!r} {error}", code="tool_server_failed") from None
        finally:
            self._observe(server, outcome.text, time.monotonic() - began)

    async def _tools(self, server: _Server) -> ServerTools:
        """Return the tools of a server, as it listed them within the last minute."""
        if server.tools is None or (server.tools.done() and time.monotonic() >= server.expires):
            server.tools = asyncio.create_task(self._read_tools(server))
        return await asyncio.shield(server.tools)  # a client that leaves does not end it for others

    async def _read_tools(self, server: _Server) -> ServerTools:
        error: str | None
        try:
            async with asyncio.timeout(LIST_SECONDS):
                found = await _read_list(server.listing)
            tools, error = found.tools, found.remark
            server.expires = time.monotonic() + FRESH_SECONDS
        except (McpError, TimeoutError) as problem:
            reason = str(problem) or f"did not answer within {LIST_SECONDS:g} s"
            tools, error = [], f"the tool server {server.name!r} {reason}"
            server.expires = time.monotonic() + RETRY_SECONDS
        return ServerTools(server.name, tools, error)


@dataclass(slots=True)
class _Outcome:
    text: str = "left"  # of a call that is cancelled, because its client has left


async def _read_list(session: Session) -> ToolList:
    """Return the tools on all pages of a server's list. Raises `McpError`."""
    found = ToolList()
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        page = await asyncio.to_thread(decode_page, await session.request("tools/list", params))
        await asyncio.to_thread(found.extend, page.tools)
        if not page.next_cursor:
            return found
        params = {"cursor": page.next_cursor}
    found.left_out += 1
    return found
