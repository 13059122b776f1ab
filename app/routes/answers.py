"""How a generation is answered over HTTP, streamed or whole: the same for every text protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app import sse
from app.errors import ApiError
from app.generation import Generation
from app.sse import EventStream
from app.streams import Usage


def resume_grace(request: Request) -> float:
    """Seconds the answer goes on when its reader has left (`X-Carousel-Resume`). Raises `ApiError`."""
    value = request.headers.get("x-carousel-resume")
    if value is None:
        return 0.0
    if not (value.isascii() and value.isdigit() and len(value) < 6):
        raise ApiError(400, f"X-Carousel-Resume must be whole seconds, not {value[:40]!r}", param="X-Carousel-Resume")
    return float(value)


def stream(generation: Generation, after: int = 0) -> EventStream:
    """The log's records behind `after`, and all that follow, as server-sent events."""
    log = generation.log

    async def content() -> AsyncIterator[bytes]:
        if log.is_closed and after == len(log.records) and isinstance(log.records[-1], Usage):
            yield sse.block(log, after, sse.DONE)  # the connection was cut between the last record and its end mark
        async with aclosing(log.read(after)) as reading:
            async for items in reading:
                data = generation.encoder.encode(log, items)
                if data:
                    yield data

    headers = {"X-Request-Id": log.id, "X-Carousel-Stream": log.id}
    return EventStream(content(), generation.reader_left, headers)


async def whole(request: Request, generation: Generation, body: Callable[[], dict[str, Any]]) -> Response:
    """Wait for the end and answer with `body()`. A client that leaves meanwhile frees its slot."""
    reading = asyncio.create_task(_drain(generation))
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reading, leaving):
            task.cancel()
        await asyncio.gather(reading, leaving, return_exceptions=True)
        generation.reader_left()
    if not generation.log.is_closed:
        return Response(status_code=499)  # nobody reads it: the client is gone
    return JSONResponse(body(), headers={"X-Request-Id": generation.log.id})


async def _drain(generation: Generation) -> None:
    async for _ in generation.log.read():
        pass


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
