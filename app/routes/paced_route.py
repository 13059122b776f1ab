"""PacedRoute: route of requests that need no engine, of which each tenant has a share of the server's processor."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.routes import authenticate_request, get_service


class PacedRoute(Route):
    """Route whose requests wait for the turn of their tenant (`app.admission.request_pace`)."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the turn, and serve the request. Raises `ApiError` (401, 429)."""
        connection = HTTPConnection(scope)
        await get_service(connection).request_pace.wait_turn(authenticate_request(connection).id)
        await super().handle(scope, receive, send)
