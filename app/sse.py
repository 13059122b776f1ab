"""Server-sent events: how blocks look, and the response that carries them.

Rules that every client tried can live with: never a block without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, never a `[DONE]` after a failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from app.following import write_of
from app.presence import hang_up, kept_of, while_present
from app.status import status_view
from app.streams import StreamLog
from engine.types import StatusEvent

log = logging.getLogger("carousel.sse")

PING_SECONDS = 15.0
SEND_TIMEOUT = 30.0  # seconds in which a reader may take nothing, the socket being full, before it is given up
LOOK = 0.1  # of that, between two looks at what it takes

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"[DONE]"
PING = PING_SECONDS, b": ping\n\n"

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


class EventStream(StreamingResponse):
    """A response of ready-made events that says when its reader is gone, however it went: when its content has ended,
    when the client has left, and when it has taken nothing for `SEND_TIMEOUT`.

    One task beside the request's own (docs/decisions/0020).
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        content: Callable[[EventStream], AsyncGenerator[bytes]],
        on_close: Callable[[], None],
        headers: dict[str, str] | None = None,
    ) -> None:
        """content: what is to be sent, but for what it writes by itself through `write` of what it is given."""
        self.write: Callable[[bytes], bool] = write_of({})
        self._content = content(self)
        self._on_close = on_close
        super().__init__(self._content, headers=HEADERS | (headers or {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.write = write_of(scope)
        has_reader = scope["method"] != "HEAD"
        if not has_reader:
            await self._content.aclose()
        try:
            async with while_present(receive):
                await self._send(send, kept_of(scope))
        except _Stalled:
            await give_up(scope, receive)
        finally:
            # A reader that leaves while bytes are being sent leaves the generator suspended: end it here.
            await self._content.aclose()
            if has_reader:
                self._on_close()

    async def _send(self, send: Send, kept: Callable[[], int]) -> None:
        """Head, content and end."""
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await _put(send, start, kept)
        async for data in self._content:
            await _put(send, {"type": "http.response.body", "body": data, "more_body": True}, kept)
        await _put(send, {"type": "http.response.body", "body": b"", "more_body": False}, kept)


async def give_up(scope: Scope, receive: Receive) -> None:
    """For a reader that has taken nothing for `SEND_TIMEOUT`."""
    log.info("a reader took nothing for %g s and is given up", SEND_TIMEOUT)
    await hang_up(scope, receive)


class _Stalled(Exception):
    """A socket stayed full for too long."""


async def _put(send: Send, message: Message, kept: Callable[[], int]) -> None:
    """Until there is room for more. What is kept may be megabytes, for a reader that fell behind: as long as it gets
    less, somebody reads."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT) as limit:
            watch = _Watch(kept, limit)
            try:
                await send(message)
            finally:
                watch.end()
    except TimeoutError:
        raise _Stalled from None


class _Watch:
    """Puts a limit off whenever less is kept than ever before."""

    def __init__(self, kept: Callable[[], int], limit: asyncio.Timeout) -> None:
        self._kept, self._limit = kept, limit
        self._least: float = math.inf
        self._loop = asyncio.get_running_loop()
        self._again()

    def end(self) -> None:
        """It was taken."""
        self._timer.cancel()

    def _again(self) -> None:
        self._timer = self._loop.call_later(LOOK * SEND_TIMEOUT, self._look)

    def _look(self) -> None:
        now = self._kept()
        if now < self._least < math.inf:
            self._limit.reschedule(self._loop.time() + SEND_TIMEOUT)
        self._least = min(now, self._least)
        self._again()
