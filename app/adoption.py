"""Adoption: continues the answers that another API process has lost, when their clients ask this one for them.

Engines on other machines go on with these requests for a while (docs/decisions/0062). The note of a request and its
tokens give its stream again, as the journal does for a process that is started again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import cast

import msgspec

from app.engine_client.adoption import AdoptedRequest, HeldElsewhere
from app.engine_client.in_flight_request import Sink
from app.errors import ApiError
from app.protocols.chat import ChatRequest
from app.protocols.common import TextRequest
from app.protocols.responses import ResponsesRequest
from app.restoring import replay, restore
from app.routes.chat_completions import complete_chat
from app.routes.stored_context import complete_response
from app.routes.text import Arrived
from app.service import Service
from app.store.entries import Entry, Note, Saved, Token

log = logging.getLogger("carousel.adoption")

# A process that was killed has lost its requests once engines notice its closed connections, within a step.
HELD_SECONDS = 1.0


class _LacksContext(Exception):
    """Only the process that has lost an answer can store it, as only its store has what the answer continues."""


class Adopter:
    """Adoptions by ID or alias of a request, each of which happens once at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}  # with the owner, by name

    async def adopt(self, name: str, owner: str) -> None:
        """Register the stream of an owner's request if an engine has it, and its API process does not.

        Raises `ApiError` (503) if another API process has it.
        """
        if not self._service.client.adoptions.is_possible or name in self._service.registry.awaited:
            return  # `recovery` asks for an answer of this process itself
        while (begun := self._tasks.get(name)) is not None and begun[0] != owner:
            await asyncio.wait((begun[1],))
        if begun is None:
            begun = self._tasks[name] = owner, asyncio.create_task(self._adopt(name, owner))
            begun[1].add_done_callback(lambda _: self._tasks.pop(name))
        await asyncio.shield(begun[1])  # an answer that was adopted goes on, also if its client has left meanwhile

    async def _adopt(self, name: str, owner: str) -> None:
        client = self._service.client
        seconds = HELD_SECONDS if self._service.siblings is None else 0.0  # the sibling that has it is asked at once
        try:
            found = await client.adoptions.adopt(name, owner, seconds)
        except HeldElsewhere:
            raise _held_elsewhere() from None
        if found is None:
            return
        try:
            is_continued = await self._continue(found)
        except _LacksContext:
            client.adoptions.give_up(found.request.id)
            raise _held_elsewhere() from None
        except Exception:
            log.exception("the answer %s of another API process could not be continued", found.request.id)
            is_continued = False
        if not is_continued:
            client.abort(found.request.id)

    async def _continue(self, found: AdoptedRequest) -> bool:
        """Make the stream of a request and go on with it. Returns False if that is not possible."""
        service, request = self._service, found.request
        note = msgspec.msgpack.decode(request.note, type=Note)
        tenant = note.tenant(service.settings)
        if tenant is None or note.vocabulary != service.text.digest:  # its key was revoked, or it is another text here
            return False
        entry = Entry.of(msgspec.structs.replace(request, output_so_far={}, sent=None), note, adopted_at=time.time())
        tokens = [Token(each.choice, each.token_id, each.finish) for each in found.tokens]
        saved = Saved(entry, None, 1, tokens)
        restored = await restore(service, saved, tenant, _complete)
        generation = restored.generation
        has_stores = service.siblings is not None and service.state_file is not None
        if restored.missing is not None and restored.parsed.is_stored and has_stores:
            raise _LacksContext
        if service.registry.get_any_owner(request.id) is not None:  # adopted by its other name meanwhile
            return False
        sink: Sink = generation.handle_event
        if service.state_file is not None:
            sink = service.state_file.journal.adopt(saved, sink, is_exact=service.info.is_exact)
        service.register(generation, tenant, restored.observer)
        service.metrics.count_adoption(request)
        log.warning("the answer %s of another API process goes on here, after %d tokens", request.id, len(found.output))
        await replay(generation, found.output)
        found.release(sink)
        generation.on_reader_left()  # starts the time for which it continues without a reader
        return True


async def _complete(arrived: Arrived[TextRequest]) -> TextRequest:
    """Return a request with its stored items, and with an observer that stores its answer if that was asked for.
    Raises `ApiError`.
    """
    if isinstance(arrived.body, ResponsesRequest):
        return await complete_response(cast(Arrived[ResponsesRequest], arrived))
    if isinstance(arrived.body, ChatRequest):
        return await complete_chat(cast(Arrived[ChatRequest], arrived))
    return arrived.body


def _held_elsewhere() -> ApiError:
    message = "another API process of this service has this answer, and its connection works; retry until it is reached"
    return ApiError(503, message, code="held_elsewhere", headers={"Retry-After": "1"})
