"""Server-sent events: format of events, and the response that streams them.

The format works with every client that was tried: no event without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, and no `[DONE]` after a failure. Ids and status are only
sent to readers that announced that they may resume: other clients take any line without `data:` for the end of an
answer (litellm), or for JSON (vLLM's benchmark).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.http.disconnect import cancel_on_disconnect
from app.streams.status import status_view
from app.streams.stream_log import StreamLog
from app.streams.tail import direct_write_of
from engine.types import StatusEvent

PING_SECONDS = 15.0

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"[DONE]"
PING = b": ping\n\n"

# UTF-8 of U+0085, U+2028 and U+2029. They may occur unescaped in a JSON string, but clients that split the stream with
# str.splitlines() (such as openai-python) treat them as ends of lines.
_LINE_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def block(log: StreamLog, seq: int, data: bytes, event: bytes = b"") -> bytes:
    """Return one event: `id:` is the position to resume from, `data:` is one line of JSON. event: its type, for
    protocols that name it in an `event:` line.
    """
    return b"id: %s.%d\n%s" % (log.cursor_start, seq, plain_block(data, event))


def plain_block(data: bytes, event: bytes = b"") -> bytes:
    """Return one event for a reader that will not resume: as `block`, without `id:`."""
    if event:
        return b"event: %s\ndata: %s\n\n" % (event, _one_line(data))
    return b"data: %s\n\n" % _one_line(data)


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    return data


def status_comment(status: StatusEvent) -> bytes:
    """Return the status of a request as a comment, which clients may ignore."""
    return b": carousel %s\n\n" % msgspec.json.encode(status_view(status))


class EventStream(StreamingResponse):
    """Response of encoded events that calls a function when its reader is gone: after the end of its content, or when
    the client has disconnected or was disconnected (`app.http.slow_client`).

    It needs one task in addition to the request's own (docs/decisions/0020).
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        content: Callable[[EventStream], AsyncGenerator[bytes]],
        on_close: Callable[[], None],
        headers: dict[str, str] | None = None,
    ) -> None:
        """content: generator of the bytes to send. It may also write directly through `write` of its argument."""
        self.write: Callable[[bytes], bool] = direct_write_of({})
        self._content = content(self)
        self._on_close = on_close
        super().__init__(self._content, headers=HEADERS | (headers or {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.write = direct_write_of(scope)
        has_reader = scope["method"] != "HEAD"
        if not has_reader:
            await self._content.aclose()
        try:
            async with cancel_on_disconnect(receive):
                await self.stream_response(send)
        finally:
            # A reader that leaves during a send leaves the generator suspended: end it here.
            await self._content.aclose()
            if has_reader:
                self._on_close()
