"""Notes of requests in engines, with which another API process can continue their streams."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from app.store.entries import Note
from engine.types import Request

MAX_NOTE_BYTES = 1 << 20  # of one request, in the memory of its engine; its body is nearly all of it


def noted(request: Request, note: Note, on_too_large: Callable[[Request], None]) -> Request:
    """Return a request with its note. It has none if the note is too large, so that no other process can adopt it."""
    data = msgspec.msgpack.encode(note)
    if len(data) > MAX_NOTE_BYTES:
        on_too_large(request)
        return request
    alias = alias_of(request.tenant, note.origin.key) if note.origin.key else ""
    return msgspec.structs.replace(request, note=data, alias=alias)


def alias_of(tenant_id: str, key: str) -> str:
    """Return the name in engines of the request with an idempotency key."""
    return hashlib.sha256(f"{tenant_id}\0{key}".encode()).hexdigest()
