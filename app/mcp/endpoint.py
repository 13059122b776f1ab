"""Endpoint: sends messages to one MCP server over HTTP and reads their answers within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
import msgspec

from app.mcp.addresses import ServerAddress
from app.mcp.errors import McpError, McpTimeout, SessionLost
from app.mcp.messages import EventDecoder, printable, result_of

CONNECT_SECONDS = 5.0
NOTICE_SECONDS = 5.0  # for a notification
MAX_BODY_BYTES = 1 << 20  # of one answer, with all other messages in it
MAX_INLINE_BYTES = 64 << 10  # of a message that is decoded on the event loop
MAX_SESSION_CHARACTERS = 1024
MAX_CONNECTIONS = 128
SESSION_HEADER = "Mcp-Session-Id"
# A compressed answer could be much larger than the bytes that are counted.
HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a request. session: id in which the server wants further ones, if it named one."""

    result: msgspec.Raw
    session: str | None


def open_client() -> httpx2.AsyncClient:
    """Return the HTTP client of all endpoints. It follows no redirect, and keeps no cookie, which it would send for
    other tenants too. Callers limit the time of an answer.
    """
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
    )


class Endpoint:
    """Address of one server. Owns no session."""

    def __init__(self, address: ServerAddress, client: httpx2.AsyncClient) -> None:
        self._url = address.url
        self._client = client
        self._headers = HEADERS | ({"Authorization": address.authorization} if address.authorization else {})

    async def request(self, message: bytes, request_id: int, headers: dict[str, str]) -> Answer:
        """Send a request and return its answer. Raises `McpError`."""
        with _translated():
            async with self._post(message, headers) as response:
                _check_head(response, has_session=SESSION_HEADER in headers)
                async with aclosing(_messages(response)) as messages:
                    async for text in messages:
                        if (result := await _decode(text, request_id)) is not None:
                            return Answer(result, _session_of(response))
        raise McpError(f"ended its answer (status {response.status_code}) without a result")

    async def notify(self, message: bytes, headers: dict[str, str]) -> None:
        """Send a notification, whose answer has no content. Raises `McpError`."""
        with _translated():
            async with asyncio.timeout(NOTICE_SECONDS), self._post(message, headers) as response:
                _check_head(response, has_session=SESSION_HEADER in headers)

    def _post(self, message: bytes, headers: dict[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        return self._client.stream("POST", self._url, content=message, headers=self._headers | headers)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the HTTP client as `McpError`."""
    try:
        yield
    except (httpx2.ConnectTimeout, TimeoutError):
        raise McpTimeout(f"did not answer within {CONNECT_SECONDS:g} s") from None
    except httpx2.ConnectError:
        raise McpError("cannot be reached") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError):
        raise McpError("ended the connection, or did not speak HTTP") from None


def _check_head(response: httpx2.Response, *, has_session: bool) -> None:
    """Raise `McpError` for an answer that cannot have a result."""
    status = response.status_code
    if status == 404 and has_session:
        raise SessionLost("does not know the session")
    if response.is_redirect:
        place = printable(response.headers.get("Location", "")[:200])
        raise McpError(f"answered with a redirect to {place!r}, and redirects are not followed")
    if status in (401, 403):
        raise McpError(f"refused access (status {status})")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise McpError("sent a compressed answer")


def _session_of(response: httpx2.Response) -> str | None:
    session: str | None = response.headers.get(SESSION_HEADER)
    if session is not None and not (0 < len(session) <= MAX_SESSION_CHARACTERS and session.isprintable()):
        raise McpError("sent an invalid session id")
    return session


async def _messages(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """Yield the messages in a body: one of JSON, or the events of a stream. Raises `McpError` for a larger body."""
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type not in ("application/json", "text/event-stream"):
        raise McpError(f"answered with status {response.status_code} and no message")
    events = EventDecoder() if media_type == "text/event-stream" else None
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise McpError(f"sent more than {MAX_BODY_BYTES:,} bytes")
        if events is None:
            parts.append(chunk)
            continue
        for text in events.push(chunk):
            yield text
    if events is None:
        yield b"".join(parts)


async def _decode(text: bytes, request_id: int) -> msgspec.Raw | None:
    if len(text) <= MAX_INLINE_BYTES:
        return result_of(text, request_id)
    return await asyncio.to_thread(result_of, text, request_id)
