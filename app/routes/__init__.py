"""Handlers. Each reads one request, asks the service, and answers; none of them knows the engine."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from app.security import authenticate
from app.service import Service


def service_of(connection: HTTPConnection) -> Service:
    """The server's parts."""
    service: Service = connection.app.state.service
    return service


def owner_of(connection: HTTPConnection) -> str:
    """Who asks. Raises `ApiError` (401)."""
    return authenticate(connection, service_of(connection).settings)
