"""Session: requests to one MCP server in a session that begins with the first one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from app import __version__
from app.mcp.endpoint import SESSION_HEADER, Endpoint
from app.mcp.errors import McpError, RequestRefused, SessionLost
from app.mcp.messages import encode, printable

PROTOCOL_VERSION = "2025-11-25"
# A server may answer in an older version, in which these requests are the same.
KNOWN_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", PROTOCOL_VERSION)
CLIENT = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}}


class Initialized(msgspec.Struct, rename="camel"):
    """Result of `initialize`."""

    protocol_version: str


class Session:
    """One session. A server that does not know it any more gets a new one, once for each request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._headers: dict[str, str] | None = None  # of requests in the session; None before it
        self._beginning = asyncio.Lock()
        self._requests = 0
        self._notices: set[asyncio.Task[None]] = set()

    async def request(self, method: str, params: dict[str, Any]) -> msgspec.Raw:
        """Return the result of a request. One that is cancelled is cancelled on the server too. Raises `McpError`."""
        headers = await self._begin()
        try:
            return await self._send(method, params, headers)
        except SessionLost:
            if self._headers is headers:  # otherwise another request has begun the next session
                self._headers = None
        return await self._send(method, params, await self._begin())

    async def _begin(self) -> dict[str, str]:
        """Return the headers of requests, after the handshake if there is no session. Raises `McpError`."""
        async with self._beginning:
            if self._headers is None:
                self._headers = await self._initialize()
            return self._headers

    async def _initialize(self) -> dict[str, str]:
        client = {"name": "carousel", "version": __version__}
        message = encode("initialize", CLIENT | {"clientInfo": client}, request_id := self._next_id())
        try:
            answer = await self._endpoint.request(message, request_id, {})
            version = msgspec.json.decode(answer.result, type=Initialized).protocol_version
        except RequestRefused as error:
            raise McpError(str(error)) from None
        except msgspec.DecodeError:
            raise McpError("did not name its version of the protocol") from None
        if version not in KNOWN_VERSIONS:
            raise McpError(f"has version {printable(version)!r} of the protocol, which is not supported")
        headers = {"MCP-Protocol-Version": version}
        if answer.session is not None:
            headers[SESSION_HEADER] = answer.session
        await self._endpoint.notify(encode("notifications/initialized"), headers)
        return headers

    async def _send(self, method: str, params: dict[str, Any], headers: dict[str, str]) -> msgspec.Raw:
        request_id = self._next_id()
        try:
            return (await self._endpoint.request(encode(method, params, request_id), request_id, headers)).result
        except asyncio.CancelledError:
            # In this protocol the end of a connection cancels nothing.
            notice = asyncio.create_task(self._cancel(request_id, headers))
            self._notices.add(notice)
            notice.add_done_callback(self._notices.discard)
            raise

    async def _cancel(self, request_id: int, headers: dict[str, str]) -> None:
        with contextlib.suppress(McpError):
            await self._endpoint.notify(encode("notifications/cancelled", {"requestId": request_id}), headers)

    def _next_id(self) -> int:
        self._requests += 1
        return self._requests
