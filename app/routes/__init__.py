"""Handlers. Each reads one request, asks the service, and answers; none of them knows the engine."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from app.security import authenticate
from app.service import Service
from app.tenants import Tenant


def service_of(connection: HTTPConnection) -> Service:
    """The server's parts."""
    service: Service = connection.app.state.service
    return service


def stream_id_of(name: str) -> str:
    """Of a stream, or of an answer or a realtime response, whose ids are the stream's behind a prefix."""
    return name.replace("_", "-").rpartition("-")[2]


def tenant_of(connection: HTTPConnection) -> Tenant:
    """Who asks. Raises `ApiError` (401)."""
    return authenticate(connection, service_of(connection).settings)
