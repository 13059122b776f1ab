"""WarmRequests: which ended requests engines still have in their prefix caches, and what that saves the next message.

Of requests that can be resumed, such as those of the chat page, the marks of prompt and answer are kept
(`engine.prefixes`), not the tokens. An answer is left out if it has reasoning, which chat templates leave out of the
next prompt, and if it is one of several.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

import msgspec

from app.engine_client.client import EngineClient
from app.generation.registry import StreamRegistry
from app.streams.stream_log import Usage
from engine.types import Request

MAX_BYTES = 16 << 20  # of all requests
MAX_TENANT_BYTES = MAX_BYTES // 4  # of those of one tenant
ENTRY_BYTES = 500  # of a request beside its marks, in both dictionaries
NEXT_TOKENS = 32  # of a next message, with the parts of the template around it


class WarmRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of a prompt and its answer, and those of them in the cache of the engine with the most, rounded down to
    marks. The times to the first token of a next message, with the cache and without it, are absent while no engine is
    ready.
    """

    cached_tokens: int
    tokens: int
    first_token_ms: int | None = None
    cold_first_token_ms: int | None = None


class _Entry(NamedTuple):
    """Marks of one request. tokens: of its prompt and answer, also of those without a mark."""

    owner: str
    tenant: str
    tokens: int
    marks: bytes

    @property
    def size(self) -> int:
        return ENTRY_BYTES + getsizeof(self.marks)


class WarmRequests:
    """Requests that have ended, within bounds of bytes for a tenant and in all; the least recently used goes first."""

    def __init__(self, client: EngineClient, registry: StreamRegistry) -> None:
        self.bytes = 0
        self.evicted = 0
        self._client = client
        self._registry = registry
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by id, the least recently used first
        self._tenants: dict[str, OrderedDict[str, int]] = {}  # their sizes by id; none is empty
        self._tenant_bytes: dict[str, int] = {}
        client.follow_ends(self.note_end)

    def __len__(self) -> int:
        return len(self._entries)

    def note_end(self, request: Request, output: Sequence[int]) -> None:
        """Remember a request that an engine has ended. output: tokens of its last choice."""
        generation = self._registry.get_any_owner(request.id)
        if generation is None or generation.resume_grace_seconds <= 0:
            return
        end = generation.log.records[-1] if generation.log.records else None
        has_answer = request.n == 1 and isinstance(end, Usage) and not end.reasoning_tokens
        tokens = (*request.prompt, *output) if has_answer else request.prompt
        if request.id in self._entries:  # of an earlier life of this stream
            self._remove(request.id)
        marks = self._client.prefixes.marks(tokens, request.cache_salt)
        entry = _Entry(request.cache_salt, request.tenant, len(tokens), marks)
        self._entries[request.id] = entry
        self._tenants.setdefault(entry.tenant, OrderedDict())[request.id] = entry.size
        self._count(entry.tenant, entry.size)
        while self._tenant_bytes.get(entry.tenant, 0) > MAX_TENANT_BYTES:
            self._evict(next(iter(self._tenants[entry.tenant])))
        while self.bytes > MAX_BYTES:
            self._evict(next(iter(self._entries)))

    def find(self, request_id: str, owner: str) -> WarmRequest | None:
        """Return what caches have of an owner's request; None for an unknown one. Takes some microseconds."""
        entry = self._entries.get(request_id)
        if entry is None or entry.owner != owner:
            return None
        self._entries.move_to_end(request_id)
        self._tenants[entry.tenant].move_to_end(request_id)
        cached = self._client.prefixes.tokens_of(entry.marks)
        member = max(cached, key=cached.__getitem__, default=None)
        most = 0 if member is None else cached[member]
        if (pace := self._client.prompt_pace(member)) is None:
            return WarmRequest(0, entry.tokens)
        after = entry.tokens + NEXT_TOKENS
        warm, cold = pace.seconds(most, after - most), pace.seconds(0, after)
        return WarmRequest(most, entry.tokens, round(1000 * warm), round(1000 * cold))

    def _evict(self, request_id: str) -> None:
        self.evicted += 1
        self._remove(request_id)

    def _remove(self, request_id: str) -> None:
        entry = self._entries.pop(request_id)
        del self._tenants[entry.tenant][request_id]
        self._count(entry.tenant, -entry.size)
        if not self._tenants[entry.tenant]:
            del self._tenants[entry.tenant], self._tenant_bytes[entry.tenant]

    def _count(self, tenant: str, size: int) -> None:
        self.bytes += size
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + size
