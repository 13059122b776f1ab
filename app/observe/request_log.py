"""Request IDs and the access log: an X-Request-Id in every answer, and a log line for each request. Pure ASGI.

Work is done once per request; per token only bytes are counted: pieces of a stream that are written directly to the
socket (`app.streams.tail`) pass through a wrapper of that function.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import error_body
from app.generation.registry import StreamRegistry
from app.streams.tail import DIRECT_WRITE

log = logging.getLogger("carousel.access")

MAX_ID_CHARACTERS = 128
MAX_PATH_CHARACTERS = 200
HEADER = b"x-request-id"
STREAM_HEADER = b"x-carousel-stream"
REQUEST_ID = "carousel.request_id"  # key in the scope
TENANT = "carousel.tenant"  # key in the scope: the name of the tenant that authenticated
PROBES = ("/health", "/livez", "/readyz", "/metrics")  # logged at level debug, as they arrive every few seconds
STATIC = "/static/"  # logged at level debug, as a page loads dozens of files

Headers = list[tuple[bytes, bytes]]


def new_request_id() -> str:
    """Return an unguessable request ID."""
    return secrets.token_hex(12)


def client_request_id(headers: Headers) -> str | None:
    """Return the ID that the client sent, if it is printable ASCII of at most 128 characters."""
    given = _header(headers, HEADER)
    if given and len(given) <= MAX_ID_CHARACTERS and given.isascii() and given.decode("ascii").isprintable():
        return given.decode("ascii")
    return None


class RequestLog:
    """Outermost middleware: request IDs and the access log."""

    def __init__(self, app: ASGIApp, registry: StreamRegistry) -> None:
        """registry: source of the token counts of answers."""
        self._app = app
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        record = _Record(scope, send)
        try:
            await self._app(scope, receive, record.send)
        except BaseException:
            record.status = record.status or 500
            raise
        finally:
            self._write(record)

    def _write(self, record: _Record) -> None:
        is_routine = record.method != "WEBSOCKET" and (record.path.endswith(PROBES) or STATIC in record.path)
        level = logging.DEBUG if is_routine else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = record.fields()
        generation = self._registry.get_any_owner(record.stream) if record.stream and record.method == "POST" else None
        if generation is not None:
            fields |= {"tokens_in": len(generation.request.prompt), "tokens_out": generation.completion_tokens}
        rest = " ".join(f"{name}={value}" for name, value in fields.items() if name not in ("method", "path", "status"))
        line = "%s %s %s %s", fields["method"], fields["path"], fields["status"], rest
        log.log(level, *line, extra={"fields": fields})


class _Record:
    """Access record of one request."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.method = scope.get("method", "WEBSOCKET")
        self.path = scope["path"][:MAX_PATH_CHARACTERS].encode("unicode_escape").decode("ascii")
        self.status = 0
        self.stream = ""
        self._began = time.monotonic()
        self._bytes = 0
        self._is_accepted = False
        self._scope = scope
        self._send = send
        self._given = client_request_id(scope["headers"])
        scope[REQUEST_ID] = self._given or new_request_id()
        extension = (scope.get("extensions") or {}).get(DIRECT_WRITE)
        if extension is not None and scope["type"] == "http":
            extension["write"] = self._counted(extension["write"])

    def _counted(self, write: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """Return `write` with a count of the bytes that it accepts."""

        def counted(piece: bytes) -> bool:
            is_taken = write(piece)
            if is_taken:
                self._bytes += len(piece)
            return is_taken

        return counted

    async def send(self, message: Message) -> None:
        """Pass a message on, with the ID in the answer's headers."""
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
                message["headers"] = self._identified(list(message.get("headers", ())))
            case "websocket.accept":
                self.status, self._is_accepted = 101, True
                message["headers"] = self._identified(list(message.get("headers", ())))
            case "http.response.body":
                self._bytes += len(message.get("body", b""))
            case "websocket.close" if not self._is_accepted and not self.status:
                await self._refuse(message.get("reason") or "the WebSocket was refused")
                return
        await self._send(message)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the access line that are known from the answer's head."""
        fields: dict[str, Any] = {"method": self.method, "path": self.path, "status": self.status or 499}
        if self.method != "WEBSOCKET":
            fields["bytes"] = self._bytes
        fields["seconds"] = round(time.monotonic() - self._began, 4)
        fields["tenant"] = self._scope.get(TENANT, "-")
        fields["request_id"] = self._scope[REQUEST_ID]
        if self.stream and self.stream != fields["request_id"]:
            fields["stream"] = self.stream
        return fields

    def _identified(self, headers: Headers) -> Headers:
        stream = _header(headers, STREAM_HEADER)
        self.stream = stream.decode("ascii") if stream else ""
        own = _header(headers, HEADER)
        if own and self._given is None:  # an answer's own ID, under which its timeline is found
            self._scope[REQUEST_ID] = own.decode("ascii")
        others = [(name, value) for name, value in headers if name.lower() != HEADER]
        return [*others, (HEADER, self._scope[REQUEST_ID].encode("ascii"))]

    async def _refuse(self, reason: str) -> None:
        """Refuse a WebSocket before its upgrade, with an answer that can have headers and a body."""
        if "websocket.http.response" not in self._scope.get("extensions", {}):
            self.status = 403
            await self._send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        body = json.dumps(error_body(403, reason)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "websocket.http.response.start", "status": 403, "headers": headers})
        await self.send({"type": "websocket.http.response.body", "body": body})


def _header(headers: Headers, name: bytes) -> bytes | None:
    return next((value for key, value in headers if key.lower() == name), None)
