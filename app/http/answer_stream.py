"""AnswerStream: response that streams the frames of a protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.http.disconnect import cancel_on_disconnect
from app.streams.tail import direct_write_of

KEEP_ALIVE_SECONDS = 15.0  # without a record, after which a reader is sent its protocol's keep-alive
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class AnswerStream(StreamingResponse):
    """Response of frames that calls a function when its reader is gone: after the end of its content, or when
    the client has disconnected or was disconnected (`app.http.slow_client`).

    It needs one task in addition to the request's own (docs/decisions/0020).
    """

    def __init__(
        self,
        content: Callable[[AnswerStream], AsyncGenerator[bytes]],
        on_close: Callable[[], None],
        media_type: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        """content: generator of the bytes to send. It may also write directly through `write` of its argument."""
        self.write: Callable[[bytes], bool] = direct_write_of({})
        self._content = content(self)
        self._on_close = on_close
        super().__init__(self._content, headers=STREAM_HEADERS | (headers or {}), media_type=media_type)

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
