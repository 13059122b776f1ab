"""Recovery: continues the answers of an earlier process from the journal (`app.restoring`).

An unfinished answer goes to the engine with its output so far, as after the death of an engine, and is stored at its
end like any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from app.admission.tenants import Tenant
from app.generation.generation import Generation
from app.generation.request import Observer
from app.protocols.common import TextRequest
from app.protocols.responses import ResponsesRequest
from app.restoring import replay, restore
from app.routes.stored_context import complete_prompt
from app.routes.stored_restore import restored_observer
from app.routes.text import Arrived
from app.service import Service
from app.store.entries import Saved
from app.store.journal import MAX_STARTS, Journal
from app.streams.stream_log import Failure

log = logging.getLogger("carousel.recovery")

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
class _Recovered:
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
    recovered = await _recovered(service, saved, tenant)
    await replay(recovered.generation, saved)
    if not (_is_whole(saved, recovered.generation) or recovered.generation.log.is_closed):
        return _continue(service, journal, recovered)
    _finish(service, journal, recovered)
    return False


async def _recovered(service: Service, saved: Saved, tenant: Tenant) -> _Recovered:
    """Return a stored request with its generation, without records."""
    restored = await restore(service, saved, tenant, _complete)
    observer = await restored_observer(service, restored.parsed, saved.entry.request.id, tenant.owner)
    failure = None
    if restored.missing is not None:
        text = (
            f"The restarted server cannot continue the answer, as its context is no longer stored: {restored.missing}"
        )
        failure = Failure(text, RESTARTED, None)
    return _Recovered(saved, tenant, restored.generation, observer, failure)


async def _complete(arrived: Arrived[TextRequest]) -> TextRequest:
    """Return a request with its stored items. Raises `ApiError` if they are gone."""
    if not isinstance(arrived.body, ResponsesRequest):
        return arrived.body
    return await complete_prompt(cast(Arrived[ResponsesRequest], arrived))


def _is_whole(saved: Saved, generation: Generation) -> bool:
    """Return whether a replayed answer had ended, with all its tokens in the store."""
    if saved.end is None:
        return False
    usage = saved.end.usage
    return usage is None or usage.completion_tokens == generation.completion_tokens


def _continue(service: Service, journal: Journal, recovered: _Recovered) -> bool:
    """Send an unfinished answer to the engine. Returns whether it was sent."""
    saved, generation = recovered.saved, recovered.generation
    failure = recovered.failure or _reason_against(service, saved)
    if failure is not None:
        generation.end_as(failure)
        _finish(service, journal, recovered)
        journal.end(generation.log)
        return False
    output = {choice: saved.output(choice) for choice in generation.unfinished}
    has_output = len(output) < generation.num_choices or any(output.values())
    request = msgspec.structs.replace(generation.request, output_so_far=output if has_output else {})
    generation.request = service.noted(request, saved.entry.note)
    sink = journal.take_up(saved, generation.handle_event, is_exact=service.info.is_exact)
    service.submit(generation, sink, recovered.tenant, recovered.observer)
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


def _finish(service: Service, journal: Journal, recovered: _Recovered) -> None:
    """Register an answer that has ended, for as long as it can be read, and store its end if that was not done."""
    saved, generation = recovered.saved, recovered.generation
    ended = saved.end
    if ended is not None and (record := ended.usage or ended.failure) is not None:
        generation.end_as(record)
    now = time.monotonic()
    generation.log.closed_at = now if ended is None else now - max(0.0, time.time() - ended.at)
    journal.keep(saved)
    service.registry.add(generation)
    service.registry.finish(generation)
    if recovered.observer is not None:
        recovered.observer.ended(generation)
