"""Middleware of API processes that share a port: a request for an ID that is not known here, or a WebSocket that takes
up a session, is answered by the process that knows it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.siblings import CLIENT_HEADER, HELD_CODE, POLL_SECONDS, SiblingAbsent, Siblings, sibling_absent

HELD_SECONDS = 2.0  # until a process that was killed has lost its requests, or is started again
MAX_BODY_BYTES = 256 << 10  # of a request by ID that may be forwarded; a longer one is answered here
# Requests by the ID of something that one process has. The routes of an input's tokens have no ID.
BY_ID = re.compile(r"/v1/(streams|requests|responses(?!/input_tokens)|conversations|chat/completions)/[^/]")
SESSION_HEADER = b"x-carousel-session"  # as ?session= has it: the id of a realtime session


class SiblingMiddleware:
    """Middleware that answers a request by ID with the answer of the process that knows the ID. Pure ASGI."""

    def __init__(self, app: ASGIApp, siblings: Siblings) -> None:
        self._app = app
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and self._siblings.has_sent(scope):
            scope["client"] = _client_of(scope["headers"])
            await self._app(scope, receive, send)
        elif _may_forward(scope):
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer here, or pass on the answer of the sibling that knows the ID."""
        first = await _first_message(scope, receive)
        if first is None:
            return  # the client has left
        body = first.get("body", b"")
        ends_at = time.monotonic() + HELD_SECONDS
        while True:
            held = _HeldBack(send)
            await self._app(dict(scope), _replayed(first, receive), held)
            if not held.messages:
                return
            is_absent = False
            try:
                forwarded = await self._siblings.find(scope, body)
            except SiblingAbsent:
                is_absent = True
            else:
                if forwarded is not None:
                    self._siblings.websockets += forwarded.is_upgraded
                    try:
                        await forwarded(scope, receive, send)
                    finally:
                        self._siblings.websockets -= forwarded.is_upgraded
                    return
            if not (held.is_elsewhere or is_absent) or time.monotonic() >= ends_at:
                break
            await asyncio.sleep(POLL_SECONDS)  # its process has died, and the engine is about to notice
        if is_absent and not held.is_elsewhere:
            error = sibling_absent()
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        for message in held.messages:
            await send(message)


def takes_up_session(scope: Scope) -> bool:
    """Return whether a WebSocket names the realtime session that it takes up."""
    if scope["path"].rstrip("/") != "/v1/realtime":
        return False
    has_header = any(name == SESSION_HEADER for name, _ in scope["headers"])
    return has_header or b"session" in parse_qs(scope["query_string"], keep_blank_values=True)


class _HeldBack:
    """`send` of an application that holds back an answer about an unknown ID."""

    def __init__(self, send: Send) -> None:
        self.messages: list[Message] = []
        self._send = send

    async def __call__(self, message: Message) -> None:
        if self.messages or (
            message["type"] in ("http.response.start", "websocket.http.response.start")
            and message["status"] in (404, 410, 503)
        ):
            self.messages.append(message)
        else:
            await self._send(message)

    @property
    def is_elsewhere(self) -> bool:
        """Return whether an engine computes the answer for another process."""
        return any(HELD_CODE in message.get("body", b"") for message in self.messages)


def _may_forward(scope: Scope) -> bool:
    """Return whether a request names what another process may have, and its body is short enough to be kept."""
    if scope["type"] == "websocket":
        return takes_up_session(scope)
    if scope["type"] != "http" or not BY_ID.match(scope["path"]):
        return False
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" not in headers and length.isdigit() and int(length) <= MAX_BODY_BYTES


async def _first_message(scope: Scope, receive: Receive) -> Message | None:
    """Return the message that begins a WebSocket, or the whole body of a request; None if the client has left."""
    if scope["type"] == "websocket":
        message = await receive()
        return message if message["type"] == "websocket.connect" else None
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return {"type": "http.request", "body": b"".join(pieces), "more_body": False}


def _replayed(first: Message, receive: Receive) -> Receive:
    """Return a `receive` with a message that was received."""
    messages = [first]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _client_of(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, int] | None:
    """Return the address of the client of a forwarded request."""
    host = dict(headers).get(CLIENT_HEADER, b"").decode("latin-1")
    return (host, 0) if host else None
