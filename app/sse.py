"""Server-sent events: how blocks look, and the response that carries them.

Rules that every client tried can live with: never a block without `data:`, status and keep-alive as comments, `id:`
only together with `data:`, an error frame before an early end, never a `[DONE]` after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, cast

import anyio
import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from app.status import status_view
from app.streams import StreamLog
from engine.types import StatusEvent

PING_SECONDS = 15
SEND_TIMEOUT = 30.0  # seconds a reader may leave the socket full before it is given up
SHUTDOWN_SECONDS = 9.0  # a stream may go on after the server was told to stop; below uvicorn's own limit

DONE = b"[DONE]"


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


class Begun:
    """A coroutine that was begun outside of a task and has to wait for something; awaited, it goes on in a task."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            try:
                waits_for = step()
            except StopIteration:
                return

    def close(self) -> None:
        """End it where it stands; nothing, if it has ended."""
        self._coroutine.close()


def begin(awaitable: Awaitable[None]) -> Begun | None:
    """Run a coroutine up to where it has to wait; None if it need not and is done."""
    coroutine = cast(Coroutine[Any, Any, None], awaitable)
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return Begun(coroutine, waits_for)


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
        self._send: Send | None = None

    async def follow(self, log: StreamLog, data: Callable[[], bytes]) -> None:
        """Send what `data` returns whenever `log` grows. Returns when the log is closed, or when the socket was full
        and took it late: what happened meanwhile is for the caller to look up. For `content`, while it is iterated.

        It is sent then and there, by whoever makes the log grow. To wake a task for it would cost more than the token
        does, and the tokens of a step go out one after another: the last waits for what is done for all others.
        Raises `SendTimeoutError` for a socket that stays full.
        """
        assert self._send is not None, "content is iterated by the response when it is called"
        send, waiting = self._send, None
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grown() -> None:
            nonlocal waiting
            if stopped.done():
                return
            try:
                if chunk := data():
                    waiting = begin(send({"type": "http.response.body", "body": chunk, "more_body": True}))
                if waiting is not None or log.is_closed:
                    stopped.set_result(None)
            except Exception as error:
                stopped.set_exception(error)

        log.followers[grown] = None
        try:
            await stopped
            if waiting is not None:
                with anyio.move_on_after(SEND_TIMEOUT) as patience:
                    await waiting
                if patience.cancel_called:
                    raise SendTimeoutError
        finally:
            del log.followers[grown]
            if waiting is not None:
                waiting.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send

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
