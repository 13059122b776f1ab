"""Recovery: continues the answers of an earlier process from the journal.

The body of a request is read again, with the stored items that it continues, which gives its encoder and its parsers;
the stored tokens give the records that were sent. An unfinished answer goes to the engine with its output so far, as
after the death of an engine, and is stored at its end like any other.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from app.admission.body_budget import BodyBudget
from app.admission.tenants import Tenant
from app.admission.thread_queue import Caller
from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.prepared import PreparedPrompt
from app.generation.request import GenerationRequest, Observer
from app.protocols.common import TextRequest
from app.protocols.responses import ResponsesRequest
from app.protocols.text_requests import TEXT_REQUESTS
from app.routes.stored_context import complete_prompt
from app.routes.stored_restore import restored_observer
from app.routes.text import Arrived
from app.service import MAX_RESUME_SECONDS, Service
from app.store.entries import Saved
from app.store.journal import MAX_STARTS, Journal
from app.streams.stream_log import Failure, StreamLog
from app.streams.timeline import IntakeTimeline

log = logging.getLogger("carousel.recovery")

TOKENS_PER_TURN = 256  # replayed tokens, which take about 10 ms
RESTARTED = "server_restarted"


async def recover(service: Service, journal: Journal, found: Sequence[Saved]) -> None:
    """Restore the answers of an earlier process, the oldest first. Until each is restored, its readers are told to
    retry, and new requests wait.
    """
    continued = 0
    for saved in found:
        stream_id = saved.entry.request.id
        try:
            continued += await _restore(service, journal, saved)
        except Exception:
            log.exception("the answer %s of an earlier process could not be restored", stream_id)
            journal.keep(saved)
            journal.forget(stream_id)
        finally:
            service.registry.awaited.discard(stream_id)
    if found:
        log.warning("%d answers of an earlier process are kept, and %d continue", len(found) - continued, continued)


@dataclass(frozen=True, slots=True)
class _Restored:
    """Answer of an earlier process. observer: stores its end, if that is to be stored. failure: why it cannot go on."""

    saved: Saved
    tenant: Tenant
    generation: Generation
    observer: Observer | None
    failure: Failure | None


async def _restore(service: Service, journal: Journal, saved: Saved) -> bool:
    """Restore one answer. Returns whether it continues."""
    entry = saved.entry
    tenant = entry.note.tenant(service.settings)
    is_other_text = entry.note.vocabulary != service.text.digest
    if tenant is None or is_other_text:  # its key was revoked, or its tokens would be another text
        journal.keep(saved)
        journal.forget(entry.request.id)
        return False
    restored = await _restored(service, saved, tenant)
    await _replay(restored.generation, saved)
    if not (_is_whole(saved, restored.generation) or restored.generation.log.is_closed):
        return _continue(service, journal, restored)
    _finish(service, journal, restored)
    return False


async def _restored(service: Service, saved: Saved, tenant: Tenant) -> _Restored:
    """Return a stored request with its generation, without records."""
    entry, note, origin = saved.entry, saved.entry.note, saved.entry.note.origin
    intake = IntakeTimeline(time.monotonic(), entry.request.client_id)
    caller = Caller(tenant.id, entry.request.service_class, intake)
    parsed = await service.prompts.parse(TEXT_REQUESTS[origin.schema], origin.body, caller)
    observer = await restored_observer(service, parsed, entry.request.id, tenant.owner)
    failure = None
    try:
        request, prompt = await _prepared(
            service, await _completed(service, parsed, saved, tenant, intake), saved, caller
        )
    except ApiError as error:
        if not isinstance(parsed, ResponsesRequest):
            raise
        text = f"The restarted server cannot continue the answer, as its context is no longer stored: {error}"
        failure = Failure(text, RESTARTED, None)
        request, prompt = await _prepared(service, parsed.without_context(), saved, caller)
    if prompt.grammar is not None or prompt.reasoning_limit is not None:
        service.client.use_vocabulary(await service.grammars.vocabulary())
    stream = StreamLog(entry.request.id, note.epoch, note.owner)
    stream.is_restored = True
    stream.created = note.created
    stream.opened_at -= max(0.0, time.time() - note.created)
    queued = msgspec.structs.replace(entry.request, weight=tenant.weight, deadline=_monotonic(note.deadline))
    generation = service.generation(queued, request, prompt, stream, intake)
    if origin.key:
        service.idempotent.restore(tenant.id, origin.key, origin.digest, generation)
    return _Restored(saved, tenant, generation, observer, failure)


async def _completed(
    service: Service, parsed: TextRequest, saved: Saved, tenant: Tenant, intake: IntakeTimeline
) -> TextRequest:
    """Return a request with its stored items. Raises `ApiError` if they are gone."""
    if not isinstance(parsed, ResponsesRequest):
        return parsed
    # One request at a time is restored, and its memory was granted before, so it waits for no other body.
    with BodyBudget(sys.maxsize, sys.maxsize).memory(tenant.id) as memory:
        return await complete_prompt(
            Arrived(parsed, len(saved.entry.note.origin.body), service, tenant, intake, memory)
        )


async def _prepared(
    service: Service, parsed: TextRequest, saved: Saved, caller: Caller
) -> tuple[GenerationRequest, PreparedPrompt]:
    """Return a request and its prompt. Raises `ApiError`."""
    # The client of a stored answer was cut off by the server, so the answer goes on without a reader for some time.
    [request] = parsed.generation_requests(saved.entry.note.origin.resume_seconds or MAX_RESUME_SECONDS)
    return request, await service.prompts.prepare(request, caller)


async def _replay(generation: Generation, saved: Saved) -> None:
    """Replay the stored tokens, and let other tasks run between some of them."""
    events = saved.events()
    while batch := list(islice(events, TOKENS_PER_TURN)):
        generation.replay(batch)
        await asyncio.sleep(0)


def _is_whole(saved: Saved, generation: Generation) -> bool:
    """Return whether a replayed answer had ended, with all its tokens in the store."""
    if saved.end is None:
        return False
    usage = saved.end.usage
    return usage is None or usage.completion_tokens == generation.completion_tokens


def _continue(service: Service, journal: Journal, restored: _Restored) -> bool:
    """Send an unfinished answer to the engine. Returns whether it was sent."""
    saved, generation = restored.saved, restored.generation
    failure = restored.failure or _reason_against(service, saved)
    if failure is not None:
        generation.end_as(failure)
        _finish(service, journal, restored)
        journal.end(generation.log)
        return False
    output = {choice: saved.output(choice) for choice in generation.unfinished}
    has_output = len(output) < generation.num_choices or any(output.values())
    generation.request = msgspec.structs.replace(generation.request, output_so_far=output if has_output else {})
    sink = journal.take_up(saved, generation.handle_event, is_exact=service.info.is_exact)
    service.submit(generation, sink, restored.tenant, restored.observer)
    generation.on_reader_left()  # starts the time for which it continues without a reader
    return True


def _reason_against(service: Service, saved: Saved) -> Failure | None:
    """Return why an answer cannot be continued; None if it can."""
    if saved.entry.note.fingerprint != service.info.fingerprint:
        return Failure("The server was restarted with another model before the answer was complete.", RESTARTED, None)
    if saved.starts >= MAX_STARTS:
        message = f"The server ended {saved.starts} times while it computed this answer, so it is not tried again."
        return Failure(message, RESTARTED, None)
    try:
        service.client.check(saved.entry.request)
    except Exception as error:
        return Failure(f"The restarted server cannot continue the answer: {error}", RESTARTED, None)
    return None


def _finish(service: Service, journal: Journal, restored: _Restored) -> None:
    """Register an answer that has ended, for as long as it can be read, and store its end if that was not done."""
    saved, generation = restored.saved, restored.generation
    ended = saved.end
    if ended is not None and (record := ended.usage or ended.failure) is not None:
        generation.end_as(record)
    now = time.monotonic()
    generation.log.closed_at = now if ended is None else now - max(0.0, time.time() - ended.at)
    journal.keep(saved)
    service.registry.add(generation)
    service.registry.finish(generation)
    if restored.observer is not None:
        restored.observer.ended(generation)


def _monotonic(moment: float | None) -> float | None:
    """Return a time of the wall clock on the monotonic clock."""
    return None if moment is None else time.monotonic() + moment - time.time()
