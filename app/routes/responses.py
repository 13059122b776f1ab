"""HTTP answers from a generation, streamed or whole, for every text protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.prompt_batch import PromptBatch
from app.http.answer_stream import KEEP_ALIVE_SECONDS, AnswerStream
from app.http.disconnect import cancel_on_disconnect
from app.protocols.responses_encoder import ResponsesEncoder
from app.streams.stream_log import Encoder, Failure, StreamLog
from app.streams.tail import MAX_RECORDS_PER_TURN, stream_chunks
from app.streams.wire_format import WireFormat

MAX_INLINE_SIZE = 256  # records and log-probabilities of an answer that is encoded on the event loop


def stream(
    generation: Generation | PromptBatch, after: int = 0, encoder: Encoder | None = None, *, resumes: bool = True
) -> Response:
    """Return the log's records after `after`, and all later ones, in frames of their protocol.

    encoder: replaces the generation's own. resumes: the reader reads ids and status. Raises `ApiError` (404) for an
    answer that is not a stream.
    """
    log, shared = generation.log, encoder or generation.encoder
    if shared is None:
        message = f"{log.id} belongs to a realtime session or to a request with several prompts and is not a stream"
        raise ApiError(404, message, code="stream_not_found")
    encoder = shared.for_reader(resumes=resumes)
    wire = encoder.wire
    is_read = log.is_closed and after == len(log.records)
    if is_read and (isinstance(log.records[-1], Failure) or not wire.end_mark):
        # tells an EventSource, which has received everything, to stop reconnecting
        return Response(status_code=204, headers=stream_headers(log))

    def content(response: AnswerStream) -> AsyncGenerator[bytes]:
        if is_read:
            return _end_mark(log, wire)  # the connection was cut after the last record
        keep_alive = (KEEP_ALIVE_SECONDS, wire.keep_alive) if wire.keep_alive else None
        chunks = stream_chunks(log, after, encoder, response, keep_alive)
        opening = encoder.opening(log) if after == 0 else b""
        return _after_opening(opening, chunks) if opening else chunks

    return AnswerStream(content, generation.on_reader_left, wire.media_type, stream_headers(log))


async def _after_opening(opening: bytes, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(chunks):
        yield opening
        async for chunk in chunks:
            yield chunk


async def _end_mark(log: StreamLog, wire: WireFormat) -> AsyncGenerator[bytes]:
    yield wire.frame(wire.end_mark, cursor=log.cursor_at(len(log.records)))


async def respond_whole(request: Request, generation: Generation | PromptBatch, encoder: Encoder) -> Response:
    """Wait for the end and return the answer's body. If the client disconnects meanwhile, its slot is freed."""
    log = generation.log
    try:
        async with cancel_on_disconnect(request.receive):
            await log.closed()
        has_left = not log.is_closed
    finally:
        generation.on_reader_left()
    if has_left:
        return Response(status_code=499)  # the client is gone

    def body() -> bytes:
        return msgspec.json.encode(encoder.body(log, generation.num_choices))

    try:
        if len(log.records) + log.logprob_count <= MAX_INLINE_SIZE:
            content = body()
        else:
            content = await asyncio.to_thread(body)
    except ApiError as error:
        error.headers |= stream_headers(log)  # so that the request's timeline can be found
        raise
    return Response(content, media_type="application/json", headers=stream_headers(log))


async def respond_now(log: StreamLog, encoder: ResponsesEncoder) -> Response:
    """Return a response as of now."""

    def body() -> bytes:
        return msgspec.json.encode(encoder.response(log))

    content = body() if len(log.records) <= MAX_RECORDS_PER_TURN else await asyncio.to_thread(body)
    return Response(content, media_type="application/json", headers=stream_headers(log))


def stream_headers(log: StreamLog) -> dict[str, str]:
    """Return the headers of an answer that name its stream."""
    return {"X-Request-Id": log.id, "X-Carousel-Stream": log.id}
