"""Server-sent events: how blocks look, and the response that carries them.

Rules that every client tried can live with: never a block without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, never a `[DONE]` after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from app.status import status_view
from app.streams import Encoder, Reader, StreamLog
from engine.types import StatusEvent

PING_SECONDS = 15
SEND_TIMEOUT = 30.0  # seconds a reader may leave the socket full before it is given up
SHUTDOWN_SECONDS = 9.0  # a stream may go on after the server was told to stop; below uvicorn's own limit

DONE = b"[DONE]"

# A scope's extension with one function: write(piece) writes a piece of a chunked body that has begun, between two that
# are sent, and is done when it returns. False, and nothing is written, where the socket has not yet taken what was
# written before, or is gone. A server without it is like one whose sockets are always full.
AT_ONCE = "carousel.at_once"

# UTF-8 of U+0085, U+2028 and U+2029. They may stand in a JSON string as they are, but clients that cut the stream with
# str.splitlines() (openai-python among them) take them for the end of the line.
_LINE_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def block(log: StreamLog, seq: int, data: bytes) -> bytes:
    """One event: `id:` says where to resume, `data:` is one line of JSON."""
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    return b"id: %s.%d\ndata: %s\n\n" % (log.cursor_start, seq, data)


def status_comment(status: StatusEvent) -> bytes:
    """Where a request stands, as a comment that clients may ignore."""
    return b": carousel %s\n\n" % msgspec.json.encode(status_view(status))


class _Follower:
    """What `EventStream.follow` has a log call. Made of few objects: each lies somewhere else in memory, and what the
    engine reads between two tokens leaves none of them in a cache.
    """

    __slots__ = ("_encoder", "_log", "_reader", "_write", "rest")

    def __init__(self, log: StreamLog, reader: Reader, encoder: Encoder, write: Callable[[bytes], bool]) -> None:
        self._log = log
        self._reader = reader
        self._encoder = encoder
        self._write = write
        self.rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def __call__(self) -> None:
        try:
            piece = self._encoder.encode(self._log, self._reader.take())
            if not piece or self._write(piece):
                piece = b""
                if not self._log.is_closed:
                    return
        except Exception as error:
            self._stop(self.rest.set_exception, error)
        else:
            self._stop(self.rest.set_result, piece)

    def _stop(self, tell: Callable[[Any], None], what: bytes | Exception) -> None:
        self._log.unfollow(self)
        if not self.rest.done():  # who waits may have been cancelled at this moment
            tell(what)


class EventStream(EventSourceResponse):
    """An SSE response of ready-made bytes that says when its reader is gone, however it went."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        on_close: Callable[[], None],
        headers: dict[str, str] | None = None,
        *,
        drains: bool = True,
    ) -> None:
        """`drains`: it has an end that is worth waiting for when the server is told to stop."""
        super().__init__(
            content,
            ping=PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping"),
            send_timeout=SEND_TIMEOUT,
            # With a grace, streams are not cut at once: `Service.drain` ends them properly.
            shutdown_event=anyio.Event() if drains else None,
            shutdown_grace_period=SHUTDOWN_SECONDS if drains else 0,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})},
        )
        self._content = content
        self._on_close = on_close
        self._write: Callable[[bytes], bool] = lambda piece: False

    async def follow(self, log: StreamLog, reader: Reader, encoder: Encoder) -> bytes:
        """Write what is new whenever `log` grows, until it is closed or the socket is full. Returns what was left to be
        written. For `content`, while it is iterated.

        It is written then and there, by whoever makes the log grow. To wake a task for it would cost more than the
        token does, and the tokens of a step go out one after another: the last waits for what is done for all others.
        """
        follower = _Follower(log, reader, encoder, self._write)
        log.follow(follower)
        try:
            return await follower.rest
        finally:
            log.unfollow(follower)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._write = scope.get("extensions", {}).get(AT_ONCE, {}).get("write", self._write)

        async def ending(message: Message) -> None:
            # sse-starlette puts a limit on every message but the last: there a full socket would hold us for ever.
            if message["type"] == "http.response.body" and not message.get("more_body"):
                with anyio.move_on_after(SEND_TIMEOUT):
                    await send(message)
            else:
                await send(message)

        try:
            await super().__call__(scope, receive, ending)
        finally:
            # A reader that leaves while bytes are being sent leaves the generator suspended: end it here.
            aclose = getattr(self._content, "aclose", None)
            if aclose is not None:
                await aclose()
            self._on_close()
