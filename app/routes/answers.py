"""How a generation is answered over HTTP, streamed or whole: the same for every text protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app import sse
from app.errors import ApiError
from app.following import SLICE, pieces
from app.generation import Generation
from app.presence import while_present
from app.schemas.answers import AnswerFormat
from app.sse import EventStream
from app.streams import Encoder, Failure, StreamLog


def resume_grace(request: Request) -> float:
    """Seconds the answer goes on when its reader has left (`X-Carousel-Resume`). Raises `ApiError`."""
    value = request.headers.get("x-carousel-resume")
    if value is None:
        return 0.0
    if not (value.isascii() and value.isdigit() and len(value) < 6):
        raise ApiError(400, f"X-Carousel-Resume must be whole seconds, not {value[:40]!r}", param="X-Carousel-Resume")
    return float(value)


def format_for(request: Request, answer: AnswerFormat) -> AnswerFormat:
    """How the client that asks is answered: with ids and status only where it says that it may come back."""
    return answer if "x-carousel-resume" in request.headers else answer.plain()


def stream(generation: Generation, after: int = 0, encoder: Encoder | None = None) -> Response:
    """The log's records behind `after`, and all that follow, as server-sent events. encoder: another than its own."""
    log, encoder = generation.log, encoder or generation.encoder
    if encoder is None:
        raise ApiError(404, f"{log.id} is a response of a realtime session and not a stream", code="stream_not_found")
    if log.is_closed and after == len(log.records) and isinstance(log.records[-1], Failure):
        return Response(status_code=204, headers=_headers(log))  # it knows; an EventSource stops asking

    def content(response: EventStream) -> AsyncGenerator[bytes]:
        if log.is_closed and after == len(log.records):
            return _end_mark(log)  # the connection was cut between the last record and it
        return pieces(log, after, encoder, response, sse.PING)

    return EventStream(content, generation.reader_left, _headers(log))


async def _end_mark(log: StreamLog) -> AsyncGenerator[bytes]:
    yield sse.block(log, len(log.records), sse.DONE)


async def whole(request: Request, generation: Generation, body: Callable[[], dict[str, Any]]) -> Response:
    """Wait for the end and answer with `body()`, which raises `ApiError` for an answer that failed. A client that
    leaves meanwhile frees its slot."""
    log = generation.log
    try:
        async with while_present(request.receive):
            await log.closed()
        has_left = not log.is_closed
    finally:
        generation.reader_left()
    if has_left:
        return Response(status_code=499)  # nobody reads it: the client is gone
    try:
        if len(log.records) <= SLICE:
            content = msgspec.json.encode(body())
        else:
            content = await asyncio.to_thread(lambda: msgspec.json.encode(body()))
    except ApiError as error:
        error.headers |= _headers(log)  # by which its account is found
        raise
    return Response(content, media_type="application/json", headers=_headers(log))


def _headers(log: StreamLog) -> dict[str, str]:
    return {"X-Request-Id": log.id, "X-Carousel-Stream": log.id}
