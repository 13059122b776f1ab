"""Recovery: continues the answers of an earlier process from the journal (`app.restoring`).

An unfinished answer that an engine still computes goes on there. One that no engine knows goes to an engine with its
output so far, as after the death of an engine. Both are stored at their end like any other. One that another API
process has adopted meanwhile is dropped here (docs/decisions/0062).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import msgspec

from app.admission.tenants import Tenant
from app.engine_client.adoption import AdoptedRequest, HeldElsewhere
from app.engine_client.in_flight_request import Sink
from app.generation.generation import Generation
from app.generation.request import Observer
from app.protocols.common import TextRequest
from app.protocols.responses import ResponsesRequest
from app.restoring import TOKENS_PER_TURN, replay, restore
from app.routes.stored_context import complete_prompt
from app.routes.stored_restore import drop_elsewhere, restored_observer
from app.routes.text import Arrived
from app.service import Service
from app.store.entries import Saved
from app.store.journal import MAX_STARTS, Journal
from app.streams.stream_log import Failure

log = logging.getLogger("carousel.recovery")

RESTARTED = "server_restarted"
CONNECT_SECONDS = 2.0  # for the connections to all engines, one of which may compute an answer
# An engine may not have noticed yet that the earlier process has gone, and a process that has just adopted an answer
# may give it up.
HELD_SECONDS = 1.0
MAX_QUESTIONS = 16  # at once: an engine answers each with up to a MiB


async def recover(service: Service, journal: Journal, found: Sequence[Saved], elsewhere: Collection[str] = ()) -> None:
    """Restore the answers of an earlier process, the oldest first. Until each is restored, its readers are told to
    retry, and new requests wait.

    elsewhere: IDs of answers that other API processes have adopted, according to their stores.
    """
    mine = [saved for saved in found if saved.entry.request.id not in elsewhere]
    reclaimed = await _reclaim(service, mine)
    continued = dropped = 0
    for saved in sorted(found, key=lambda saved: saved.entry.request.id in reclaimed.held):  # asked for again, last
        stream_id, given = saved.entry.request.id, reclaimed.given.pop(saved.entry.request.id, None)
        is_continued, is_elsewhere = False, stream_id in elsewhere
        try:
            if stream_id in reclaimed.held:
                given, is_elsewhere = await _ask(service, saved, reclaimed.seconds_left)
            if is_elsewhere:
                dropped += 1
                await _drop(service, journal, saved)
            else:
                is_continued = await _restore(service, journal, saved, given)
        except Exception:
            log.exception("the answer %s of an earlier process could not be restored", stream_id)
            journal.keep(saved)
            journal.forget(stream_id)
        finally:
            if given is not None and not is_continued:
                service.client.abort(stream_id)
            service.registry.awaited.discard(stream_id)
        continued += is_continued
    if found:
        kept = len(found) - continued - dropped
        log.warning("answers of an earlier process: %d are kept, %d continue", kept, continued)
    if dropped:
        log.warning("answers of an earlier process: %d continue in other API processes", dropped)


class _Reclaimed:
    """Answers of engines to the questions for unfinished answers."""

    def __init__(self) -> None:
        self.given: dict[str, AdoptedRequest] = {}  # by ID; their events wait
        self.held: set[str] = set()  # IDs of those that another process has
        self._ends_at = time.monotonic() + HELD_SECONDS

    @property
    def seconds_left(self) -> float:
        """Return the seconds for which a held answer is asked for again."""
        return self._ends_at - time.monotonic()


async def _reclaim(service: Service, found: Sequence[Saved]) -> _Reclaimed:
    """Ask the engines for the unfinished answers, before anything is sent to them."""
    reclaimed = _Reclaimed()
    asked = [saved for saved in found if _is_computed_on(service, saved)]
    if not (asked and service.client.adoptions.is_possible):
        return reclaimed
    await service.client.adoptions.connected(CONNECT_SECONDS)
    places = asyncio.Semaphore(MAX_QUESTIONS)

    async def ask(saved: Saved) -> None:
        async with places:
            given, is_held = await _ask(service, saved)
        if is_held:
            reclaimed.held.add(saved.entry.request.id)
        elif given is not None:
            reclaimed.given[saved.entry.request.id] = given

    await asyncio.gather(*map(ask, asked))
    return reclaimed


async def _ask(service: Service, saved: Saved, seconds: float = 0.0) -> tuple[AdoptedRequest | None, bool]:
    """Return an unfinished answer that an engine has gone on with, and whether another process has it, after some
    seconds at most.
    """
    try:
        return await service.client.adoptions.adopt(saved.entry.request.id, saved.entry.note.owner, seconds), False
    except HeldElsewhere:
        return None, True


def _is_computed_on(service: Service, saved: Saved) -> bool:
    """Return whether an engine may have gone on with an answer, for this process or another one."""
    note = saved.entry.note
    if saved.end is not None or note.tenant(service.settings) is None or note.vocabulary != service.text.digest:
        return False
    return sum(token.finish is not None for token in saved.tokens) < saved.entry.request.n


async def _drop(service: Service, journal: Journal, saved: Saved) -> None:
    """Forget an answer that another process has, with its stored record: requests for it are forwarded there."""
    journal.keep(saved)
    journal.forget(saved.entry.request.id)
    await drop_elsewhere(service, saved.entry.request.id, saved.entry.note.owner)


@dataclass(frozen=True, slots=True)
class _Recovered:
    """Answer of an earlier process. observer: stores its end, if that is to be stored. failure: why it cannot go on."""

    saved: Saved
    tenant: Tenant
    generation: Generation
    observer: Observer | None
    failure: Failure | None


async def _restore(service: Service, journal: Journal, saved: Saved, given: AdoptedRequest | None) -> bool:
    """Restore one answer. given: by an engine that has gone on with it. Returns whether it continues."""
    entry = saved.entry
    tenant = entry.note.tenant(service.settings)
    is_other_text = entry.note.vocabulary != service.text.digest
    if tenant is None or is_other_text:  # its key was revoked, or its tokens would be another text
        journal.keep(saved)
        journal.forget(entry.request.id)
        return False
    recovered = await _recovered(service, saved, tenant)
    await replay(recovered.generation, saved.events())
    if not (_is_whole(saved, recovered.generation) or recovered.generation.log.is_closed):
        return await _continue(service, journal, recovered, given)
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


async def _continue(service: Service, journal: Journal, recovered: _Recovered, given: AdoptedRequest | None) -> bool:
    """Go on with an unfinished answer where an engine has it, or send it to one. Returns whether it continues."""
    saved, generation = recovered.saved, recovered.generation
    failure = recovered.failure or _reason_against(service, saved, given)
    if failure is not None:
        generation.end_as(failure)
        _finish(service, journal, recovered)
        journal.end(generation.log)
        return False
    sink = journal.take_up(saved, generation.handle_event, is_exact=service.info.is_exact)
    if given is not None:
        service.register(generation, recovered.tenant, recovered.observer)
        await _catch_up(saved, given, sink)
    else:
        output = {choice: saved.output(choice) for choice in generation.unfinished}
        has_output = len(output) < generation.num_choices or any(output.values())
        sent = saved.sent() if generation.num_choices > 1 else None
        so_far = output if has_output else {}
        request = msgspec.structs.replace(generation.request, output_so_far=so_far, sent=sent)
        generation.request = service.noted(request, saved.entry.note)
        service.submit(generation, sink, recovered.tenant, recovered.observer)
    generation.on_reader_left()  # starts the time for which it continues without a reader
    return True


async def _catch_up(saved: Saved, given: AdoptedRequest, sink: Sink) -> None:
    """Pass the output on that the store lacks, and then the events that have arrived since, and later ones."""
    events = given.output_after(len(saved.tokens))
    while batch := list(islice(events, TOKENS_PER_TURN)):
        for event in batch:
            sink(event)
        await asyncio.sleep(0)
    given.release(sink)


def _reason_against(service: Service, saved: Saved, given: AdoptedRequest | None) -> Failure | None:
    """Return why an answer cannot be continued; None if it can."""
    if given is not None and list(saved.events()) != given.tokens[: len(saved.tokens)]:
        return Failure("The engine has other tokens of the answer than the restarted server.", RESTARTED, None)
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
