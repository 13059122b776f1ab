"""Restoring: makes the stream of an earlier or another API process again, from its stored request and tokens.

The body of the request is read again, with the stored items that it continues, which gives its encoder and its parsers;
the tokens give the records that were sent, with the same numbers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import msgspec

from app.admission.body_budget import BodyBudget
from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.generation.assembly import MAX_RESUME_SECONDS
from app.generation.generation import Generation
from app.generation.prepared import PreparedPrompt
from app.generation.request import GenerationRequest, Observer
from app.protocols.common import TextRequest
from app.protocols.responses import ResponsesRequest
from app.protocols.text_requests import TEXT_REQUESTS
from app.routes.text import Arrived
from app.service import Service
from app.store.entries import Saved
from app.streams.stream_log import StreamLog
from app.streams.timeline import IntakeTimeline
from engine.types import EndEvent, TokenEvent

TOKENS_PER_TURN = 256  # replayed tokens, which take about 10 ms

Completion = Callable[[Arrived[TextRequest]], Awaitable[TextRequest]]


@dataclass(frozen=True, slots=True)
class Restored:
    """Stored request with its generation, without records.

    parsed: its body. observer: of the request that was made from it. missing: why its stored items were not found.
    """

    saved: Saved
    tenant: Tenant
    parsed: TextRequest
    generation: Generation
    observer: Observer | None
    missing: ApiError | None


async def restore(service: Service, saved: Saved, tenant: Tenant, complete: Completion) -> Restored:
    """Return a stored request with its generation. complete: adds the stored items of the request; it raises `ApiError`
    if they are gone, and the stream is made without them.
    """
    entry, note, origin = saved.entry, saved.entry.note, saved.entry.note.origin
    intake = IntakeTimeline(time.monotonic(), entry.request.client_id)
    caller = Caller(tenant.id, entry.request.service_class, intake)
    parsed = await service.prompts.parse(TEXT_REQUESTS[origin.schema], origin.body, caller)
    missing = None
    try:
        # One request at a time is restored, and its memory was granted before, so it waits for no other body.
        with BodyBudget(sys.maxsize, sys.maxsize).memory(tenant.id) as memory:
            completed = await complete(Arrived(parsed, len(origin.body), service, tenant, intake, memory))
        request, prompt = await _prepared(service, completed, saved, caller)
    except ApiError as error:
        if not isinstance(parsed, ResponsesRequest):
            raise
        missing = error
        request, prompt = await _prepared(service, parsed.without_context(), saved, caller)
    if prompt.grammar is not None or prompt.reasoning_limit is not None:
        service.client.use_vocabulary(await service.grammars.vocabulary())
    stream = StreamLog(entry.request.id, note.epoch, note.owner)
    stream.is_restored = True
    stream.created = note.created
    stream.opened_at -= max(0.0, time.time() - note.created)
    queued = msgspec.structs.replace(entry.request, weight=tenant.weight, deadline=_monotonic(note.deadline))
    # Its client may have changed its class since then, but its events are to have the same bytes.
    first = msgspec.structs.replace(queued, service_class=note.service_class)
    generation = service.generation(first, request, prompt, stream, intake)
    generation.request = queued
    if origin.key:
        service.idempotent.restore(tenant.id, origin.key, origin.digest, generation)
    return Restored(saved, tenant, parsed, generation, request.observer, missing)


async def replay(generation: Generation, output: Iterable[TokenEvent | EndEvent]) -> None:
    """Replay the output so far, and let other tasks run between some of its events."""
    events = iter(output)
    while batch := list(islice(events, TOKENS_PER_TURN)):
        generation.replay(batch)
        await asyncio.sleep(0)


async def _prepared(
    service: Service, parsed: TextRequest, saved: Saved, caller: Caller
) -> tuple[GenerationRequest, PreparedPrompt]:
    """Return a request and its prompt. Raises `ApiError`."""
    # The client of a stored answer was cut off by the server, so the answer goes on without a reader for some time.
    [request] = parsed.generation_requests(saved.entry.note.origin.resume_seconds or MAX_RESUME_SECONDS)
    return request, await service.prompts.prepare(request, caller)


def _monotonic(moment: float | None) -> float | None:
    """Return a time of the wall clock on the monotonic clock."""
    return None if moment is None else time.monotonic() + moment - time.time()
