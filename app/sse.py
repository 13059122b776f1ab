"""Server-sent events: how blocks look, and the response that carries them.

Rules that every client tried can live with: never a block without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, never a `[DONE]` after a failure. Ids and status are for
readers that may come back, who know server-sent events: others take whatever is not `data:` for the end of an answer
(litellm), or for JSON (vLLM's benchmark).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.following import write_of
from app.presence import while_present
from app.status import status_view
from app.streams import StreamLog
from engine.types import StatusEvent

PING_SECONDS = 15.0

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"[DONE]"
PING = PING_SECONDS, b": ping\n\n"

# UTF-8 of U+0085, U+2028 and U+2029. They may stand in a JSON string as they are, but clients that cut the stream with
# str.splitlines() (openai-python among them) take them for the end of the line.
_LINE_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def block(log: StreamLog, seq: int, data: bytes) -> bytes:
    """One event: `id:` says where to resume, `data:` is one line of JSON."""
    return b"id: %s.%d\ndata: %s\n\n" % (log.cursor_start, seq, _one_line(data))


def plain_block(data: bytes) -> bytes:
    """One event for a reader that will not resume: `data:` and nothing else."""
    return b"data: %s\n\n" % _one_line(data)


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for raw, escaped in _LINE_BREAKS:
            data = data.replace(raw, escaped)
    return data


def status_comment(status: StatusEvent) -> bytes:
    """Where a request stands, as a comment that clients may ignore."""
    return b": carousel %s\n\n" % msgspec.json.encode(status_view(status))


class EventStream(StreamingResponse):
    """A response of ready-made events that says when its reader is gone, however it went: when its content has ended,
    and when the client has left, or was hung up on (`app.patience`).

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
                await self.stream_response(send)
        finally:
            # A reader that leaves while bytes are being sent leaves the generator suspended: end it here.
            await self._content.aclose()
            if has_reader:
                self._on_close()
