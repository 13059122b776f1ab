"""Server-sent events: how blocks look, and the response that carries them.

Rules that every client tried can live with: never a block without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, never a `[DONE]` after a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from app.status import status_view
from app.streams import Encoder, Reader, StreamLog
from engine.types import StatusEvent

log = logging.getLogger("carousel.sse")

PING_SECONDS = 15.0
SEND_TIMEOUT = 30.0  # seconds a reader may leave the socket full before it is given up

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"[DONE]"
PING = b": ping\n\n"

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

    def ping(self) -> None:
        """Have a comment written that keeps the connection, and those on its way, from taking it for a dead one."""
        self._stop(self.rest.set_result, PING)

    def _stop(self, tell: Callable[[Any], None], what: bytes | Exception) -> None:
        self._log.unfollow(self)
        if not self.rest.done():  # who waits may have been cancelled at this moment
            tell(what)


class EventStream(StreamingResponse):
    """A response of ready-made events that says when its reader is gone, however it went: when `content` has ended,
    when the client has left, and when a message has waited `SEND_TIMEOUT` for a full socket.

    One task beside the request's own (docs/decisions/0020).
    """

    media_type = "text/event-stream"

    def __init__(
        self, content: AsyncGenerator[bytes], on_close: Callable[[], None], headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(content, headers=HEADERS | (headers or {}))
        self._content = content
        self._on_close = on_close
        self._write: Callable[[bytes], bool] = lambda piece: False

    async def follow(self, log: StreamLog, reader: Reader, encoder: Encoder) -> bytes:
        """Write what is new whenever `log` grows, until it is closed, the socket is full, or it is time for a ping.
        Returns what is left to be written. For `content`, while it is iterated.

        It is written then and there, by whoever makes the log grow. To wake a task for it would cost more than the
        token does, and the tokens of a step go out one after another: the last waits for what is done for all others.
        """
        follower = _Follower(log, reader, encoder, self._write)
        ping = asyncio.get_running_loop().call_later(PING_SECONDS, follower.ping)
        log.follow(follower)
        try:
            return await follower.rest
        finally:
            ping.cancel()
            log.unfollow(follower)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._write = scope.get("extensions", {}).get(AT_ONCE, {}).get("write", self._write)
        watching: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as presence:  # the reader's; its end cancels what is done for it
                watching = asyncio.create_task(_watch(receive, presence))
                await self._send_all(send, is_head=scope["method"] == "HEAD")
        except TimeoutError:
            if not presence.expired():
                raise
        except _Stalled:
            log.info("a reader took nothing for %g s and is given up", SEND_TIMEOUT)
        finally:
            if watching is not None:
                watching.cancel()
            # A reader that leaves while bytes are being sent leaves the generator suspended: end it here.
            await self._content.aclose()
            self._on_close()

    async def _send_all(self, send: Send, *, is_head: bool) -> None:
        await _put(send, {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not is_head:
            async for data in self._content:
                await _put(send, {"type": "http.response.body", "body": data, "more_body": True})
        await _put(send, {"type": "http.response.body", "body": b"", "more_body": False})


class _Stalled(Exception):
    """A socket stayed full for too long."""


async def _put(send: Send, message: Message) -> None:
    try:
        async with asyncio.timeout(SEND_TIMEOUT):
            await send(message)
    except TimeoutError:
        raise _Stalled from None


async def _watch(receive: Receive, presence: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    presence.reschedule(asyncio.get_running_loop().time())
