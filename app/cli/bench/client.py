"""HTTP and server-sent events client of `carousel bench` and `carousel explain`.

Uses plain connections, one per request, with little overhead, because it often shares the machine with the server that
it measures. It has no knowledge of workloads.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from app.cli.bench.measure import CONNECTION_ERROR
from app.errors import failure_status
from app.settings import SettingsError

CONNECT_SECONDS = 10.0
QUIET_SECONDS = 120.0  # without a byte, after which a request has failed; Carousel sends a comment every 15 s
MAX_BODY_BYTES = 4 << 20  # of a body that is not a stream, and of one event


class ServerUnreachable(Exception):
    """No usable server answers; the message gives the reason in one line."""


class ResponseError(Exception):
    """An answer ended early or violates the protocol."""


@dataclass(frozen=True, slots=True)
class Target:
    """Address of a server."""

    url: str
    host: str
    port: int
    path: str
    tls: bool
    address: str | None = None  # resolved address of the host; None: every request resolves it

    @classmethod
    def parse(cls, url: str) -> Target:
        """Parse a URL. Raises `SettingsError` if it is not the address of a server."""
        if "://" not in url:  # users often leave out the scheme
            url = f"http://{url}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise SettingsError(f"{url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable():
            raise SettingsError(f"{url!r} is not the URL of a server; it must look like http://127.0.0.1:8000")
        if parts.username is not None or parts.query or parts.fragment or " " in url:
            raise SettingsError(
                "the URL of a server must not contain a user, query or fragment; pass a key with --api-key"
            )
        tls = parts.scheme == "https"
        return cls(url.rstrip("/"), host, port or (443 if tls else 80), parts.path.rstrip("/"), tls)

    def request_head(self, method: str, path: str, length: int, key: str | None) -> bytes:
        """Return the request line and headers."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"Host: {name}:{self.port}", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {length}"] if length else []
        lines += [f"Authorization: Bearer {key}"] if key else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Response:
    """Response that is being received. The parser calls its `on_...` methods."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.headers: dict[str, str] = {}
        self.status = 0
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._begun = self._complete = False
        self._body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._begun = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._complete = True

    async def begin(self) -> None:
        """Wait for status and headers. Raises `ResponseError`."""
        while not self._begun:
            if not await self._more():
                raise ResponseError("the connection was closed without an answer")

    async def read(self) -> bytes:
        """Return more of the body; empty at its end. Raises `ResponseError`."""
        while not self._body and not self._complete:
            if not await self._more():
                if "content-length" in self.headers or "transfer-encoding" in self.headers:
                    raise ResponseError("the connection was closed in the middle of the answer")
                self._complete = True  # as in HTTP/1.0, the end of the connection ends the body
        body = b"".join(self._body)
        self._body.clear()
        return body

    async def whole(self) -> bytes:
        """Return the whole body. Raises `ResponseError`."""
        body = bytearray()
        while data := await self.read():
            body += data
            if len(body) > MAX_BODY_BYTES:
                raise ResponseError(f"the answer has more than {MAX_BODY_BYTES} bytes")
        return bytes(body)

    async def _more(self) -> bool:
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                data = await self._reader.read(1 << 16)
            if data:
                self._parser.feed_data(data)
        except TimeoutError:
            raise ResponseError(f"no data arrived for {QUIET_SECONDS:.0f} s") from None
        except OSError as error:
            raise ResponseError(f"the connection broke: {_reason(error)}") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise ResponseError("the server does not speak HTTP") from None
        return bool(data)


async def connect(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection. Raises `ResponseError` if that fails."""
    tls: dict[str, Any] = {"ssl": True, "server_hostname": target.host} if target.tls else {}
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.open_connection(target.address or target.host, target.port, **tls)
    except TimeoutError:
        raise ResponseError(f"no connection to {target.url} in {CONNECT_SECONDS:.0f} s") from None
    except (OSError, UnicodeError) as error:  # a host name with a label that is too long raises UnicodeError
        raise ResponseError(f"no connection to {target.url}: {_reason(error)}") from None


async def resolve_address(target: Target) -> Target:
    """Return `target` with the address that accepted a connection. Resolving a name takes a thread switch, and a name
    with several addresses may cost a failed connection; neither is the server's time. Raises `ServerUnreachable`.
    """
    try:
        _, writer = await connect(target)
    except ResponseError as error:
        raise ServerUnreachable(str(error)) from None
    peer = writer.get_extra_info("peername")
    writer.transport.abort()
    return replace(target, address=peer[0])


@asynccontextmanager
async def request(
    target: Target, method: str, path: str, body: object = None, key: str | None = None
) -> AsyncGenerator[Response, None]:
    """Send a request and return its response, with its headers read. Raises `ResponseError`, also if no connection is
    made.
    """
    content = b"" if body is None else msgspec.json.encode(body)
    reader, writer = await connect(target)
    try:
        writer.write(target.request_head(method, path, len(content), key) + content)
        response = Response(reader)
        await response.begin()
        yield response
    finally:
        writer.transport.abort()  # at once: an unfinished stream is left only when the measurement stops


async def request_json(target: Target, method: str, path: str, body: object = None, key: str | None = None) -> Any:
    """Send a short request and return its JSON answer. Raises `ServerUnreachable`."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS), request(target, method, path, body, key) as response:
            status, content = response.status, await response.whole()
    except (ResponseError, TimeoutError) as error:
        raise ServerUnreachable(str(error) or f"no answer from {target.url} in {CONNECT_SECONDS:.0f} s") from None
    if status != 200:
        code, message = error_of(content)
        raise ServerUnreachable(
            f"{target.url}{path} answered {status}" + (f": {message or code}" if message or code else "")
        )
    try:
        return json.loads(content)
    except ValueError:
        raise ServerUnreachable(
            f"{target.url}{path} did not answer with JSON: is that the address of a server?"
        ) from None


class Events:
    """Parser that splits a stream into events, independently of how its chunks are cut."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are now complete. Raises `ResponseError` for one that is too long."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        if len(self._tail) > MAX_BODY_BYTES:
            raise ResponseError(f"a line has more than {MAX_BODY_BYTES} bytes")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None
    time_ms: dict[str, float] = {}


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class Answer:
    """Outcome of a request. Times are on the clock given to `complete`. `outcome` is done, refused (an HTTP status
    other than 200), failed (no answer or an incomplete one) or stopped (cancelled by this client).
    """

    outcome: str = "failed"
    status: int | None = None  # for an answer that ended in an error frame, the status that corresponds to its code
    error: str | None = None
    message: str | None = None
    retry_after: float | None = None
    tokens: list[float] = field(default_factory=list)  # when text arrived
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    time_ms: dict[str, float] = field(default_factory=dict)


async def stream_completion(
    target: Target, body: dict[str, Any], key: str | None, clock: Callable[[], float], answer: Answer
) -> None:
    """Stream POST /v1/completions and record its progress in `answer`. Raises only `CancelledError`."""
    try:
        async with request(target, "POST", "/v1/completions", body, key) as response:
            answer.status = response.status
            if response.status == 200:
                await _follow(response, clock, answer)
            else:
                await _refused(response, answer)
    except ResponseError as error:
        answer.error, answer.message = answer.error or CONNECTION_ERROR, str(error)
    except asyncio.CancelledError:
        answer.outcome = "stopped"
        raise


async def _follow(response: Response, clock: Callable[[], float], answer: Answer) -> None:
    events, opened = Events(), None
    while data := await response.read():
        now = clock()
        for event in events.feed(data):
            if event == b"[DONE]":
                # An answer of special tokens alone has no text; its first chunk then counts as its first token.
                answer.tokens = answer.tokens or ([] if opened is None else [opened])
                answer.outcome = "done"
                return
            chunk = _chunk(event)
            if chunk.error is not None:
                _note_error(chunk.error, answer)
                return
            if chunk.choices:
                opened = opened or now
                answer.tokens += [now] if chunk.choices[0].text else []
            if chunk.usage is not None:
                _note_usage(chunk.usage, answer)
    raise ResponseError("the stream ended without its end mark")


async def _refused(response: Response, answer: Answer) -> None:
    answer.outcome = "refused"
    seconds = response.headers.get("retry-after", "")
    answer.retry_after = float(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else None
    code, answer.message = error_of(await response.whole())
    answer.error = code or None


def _chunk(event: bytes) -> _Chunk:
    try:
        return _decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ResponseError("an event is not a chunk of a completion") from None


def _note_error(error: dict[str, Any], answer: Answer) -> None:
    answer.error, answer.message = str(error.get("code") or "error"), str(error.get("message") or "")
    answer.status = failure_status(answer.error)


def _note_usage(usage: _Usage, answer: Answer) -> None:
    answer.prompt_tokens, answer.completion_tokens = usage.prompt_tokens, usage.completion_tokens
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens")
    answer.cached_tokens = cached if isinstance(cached, int) else 0
    answer.time_ms = usage.time_ms


def error_of(content: bytes) -> tuple[str, str]:
    """Return code and message of an error body; both are empty for another body."""
    try:
        error = json.loads(content)["error"]
        return str(error.get("code") or ""), str(error.get("message") or "").partition("\n")[0]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number)  # asyncio's own text is less specific
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
