"""Idempotency keys: a repeated request gets the answer of the first one, which is generated once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import ReferenceType, ref

from app.admission.bounded_keys import BoundedKeys
from app.admission.tenants import Tenant
from app.errors import ApiError
from app.generation.generation import Generation
from app.generation.registry import StreamRegistry
from app.streams.stream_log import CursorError

MAX_KEY_CHARACTERS = 255
MAX_KEYS = 65_536  # of all tenants; an entry takes at most 1 KB
MAX_KEYS_PER_TENANT = 4096
RETRY_SECONDS = 60.0  # for which an answer continues without a reader, so that a client can reconnect


@dataclass(frozen=True, slots=True)
class _Entry:
    """First request with a key. digest: of its route and body. generation: the registry decides how long it is kept."""

    digest: bytes
    generation: asyncio.Future[ReferenceType[Generation]]


class IdempotentRequests:
    """Generations by tenant and key, for as long as their streams are kept. Without API keys a network is a tenant, so
    clients elsewhere can neither use nor displace its keys.
    """

    def __init__(self, registry: StreamRegistry) -> None:
        self._registry = registry
        self.entries: BoundedKeys[_Entry] = BoundedKeys(MAX_KEYS, MAX_KEYS_PER_TENANT)

    async def run(
        self, tenant: Tenant, key: str, digest: bytes, start: Callable[[], Awaitable[Generation]]
    ) -> tuple[Generation, bool]:
        """Return the generation of an earlier request with the key, else that of `start`, and whether it is an earlier
        one. Raises `ApiError`: 409 if the earlier request was another one, else that of `start`.
        """
        while (entry := self.entries.get(tenant.id, key)) is not None:
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
            if generation is not None and self._is_kept(generation, tenant.owner):
                return generation, True
            self._forget(tenant.id, key, entry)
        return await self._start(tenant.id, key, digest, start), False

    def has(self, tenant_id: str, key: str) -> bool:
        """Return whether a request with the key is known."""
        return self.entries.get(tenant_id, key) is not None

    def restore(self, tenant_id: str, key: str, digest: bytes, generation: Generation) -> None:
        """Remember the generation of an earlier process."""
        entry = _Entry(digest, asyncio.get_running_loop().create_future())
        entry.generation.set_result(ref(generation))
        self.entries.add(tenant_id, key, entry)

    async def _start(
        self, tenant_id: str, key: str, digest: bytes, start: Callable[[], Awaitable[Generation]]
    ) -> Generation:
        entry = _Entry(digest, asyncio.get_running_loop().create_future())
        self.entries.add(tenant_id, key, entry)
        try:
            generation = await start()
        except BaseException as error:
            self._forget(tenant_id, key, entry)
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

    def _forget(self, tenant_id: str, key: str, entry: _Entry) -> None:
        if self.entries.get(tenant_id, key) is entry:
            self.entries.remove(tenant_id, key)
