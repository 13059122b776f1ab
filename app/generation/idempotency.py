"""Idempotency keys: a repeated request gets the answer of the first one, which is generated once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import ReferenceType, ref

from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.registry import StreamRegistry
from app.streams.stream_log import CursorError

MAX_KEY_CHARACTERS = 255
MAX_KEYS = 16_384  # beyond these, the oldest are forgotten
RETRY_SECONDS = 60.0  # for which an answer continues without a reader, so that a client can reconnect


@dataclass(frozen=True, slots=True)
class _Entry:
    """First request with a key. digest: of its route and body. generation: the registry decides how long it is kept."""

    digest: bytes
    generation: asyncio.Future[ReferenceType[Generation]]


class IdempotentRequests:
    """Generations by owner and key, for as long as their streams are kept."""

    def __init__(self, registry: StreamRegistry) -> None:
        self._registry = registry
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    async def run(
        self, owner: str, key: str, digest: bytes, start: Callable[[], Awaitable[Generation]]
    ) -> tuple[Generation, bool]:
        """Return the generation of an earlier request with the key, else that of `start`, and whether it is an earlier
        one. Raises `ApiError`: 409 if the earlier request was another one, else that of `start`.
        """
        while (entry := self._entries.get((owner, key))) is not None:
            if entry.digest != digest:
                raise ApiError(
                    409,
                    "Idempotency-Key: the key was used for a request with another body or route",
                    param="Idempotency-Key",
                    code="idempotency_key_reused",
                )
            try:
                generation = (await asyncio.shield(entry.generation))()
            except asyncio.CancelledError:
                if not entry.generation.cancelled():
                    raise
                continue  # the first client has left before its request was queued
            if generation is not None and self._is_kept(generation, owner):
                return generation, True
            self._forget(owner, key, entry)
        return await self._start(owner, key, digest, start), False

    async def _start(
        self, owner: str, key: str, digest: bytes, start: Callable[[], Awaitable[Generation]]
    ) -> Generation:
        entry = self._entries[owner, key] = _Entry(digest, asyncio.get_running_loop().create_future())
        while len(self._entries) > MAX_KEYS:
            self._entries.popitem(last=False)
        try:
            generation = await start()
        except BaseException as error:
            self._forget(owner, key, entry)
            if isinstance(error, Exception):
                entry.generation.set_exception(error)
                entry.generation.exception()  # retrieved, also if no other request waits for it
            else:
                entry.generation.cancel()
            raise
        entry.generation.set_result(ref(generation))
        return generation

    def _is_kept(self, generation: Generation, owner: str) -> bool:
        try:
            return self._registry.get(generation.log.id, owner) is generation
        except CursorError:
            return False

    def _forget(self, owner: str, key: str, entry: _Entry) -> None:
        if self._entries.get((owner, key)) is entry:
            del self._entries[owner, key]
