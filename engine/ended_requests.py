"""Requests that have ended a short while ago: their API process may have died with their last tokens. Pure.

Only requests with a note are kept, as nothing else can be made of the tokens of others.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.orphans import Orphan

MAX_KEPT_BYTES = 64 << 20  # of all ended requests; beyond it the oldest is forgotten


class EndedRequests:
    """Ended requests by ID, the oldest first, within a time and a number of bytes."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Orphan] = OrderedDict()
        self._ids: dict[str, str] = {}  # by alias
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, ended: Orphan) -> None:
        """Keep a request until it expires, or until newer ones take its place."""
        self.forget(ended.request.id)
        self._kept[ended.request.id] = ended
        if ended.request.alias:
            self._ids[ended.request.alias] = ended.request.id
        self.bytes += ended.bytes
        while self.bytes > self._max_bytes:
            self.forget(next(iter(self._kept)))

    def find(self, name: str) -> Orphan | None:
        """Return a request by its ID or alias."""
        return self._kept.get(self._ids.get(name, name))

    def lose(self, process: str) -> None:
        """Let other processes adopt the requests of an API process that has lost its connection."""
        for ended in self._kept.values():
            if ended.process == process:
                ended.is_held = False

    def expire(self, now: float) -> None:
        """Forget the requests that have expired."""
        while self._kept and next(iter(self._kept.values())).expires_at <= now:
            self.forget(next(iter(self._kept)))

    def forget(self, request_id: str) -> None:
        """Forget a request, if it is kept."""
        if (ended := self._kept.pop(request_id, None)) is not None:
            self.bytes -= ended.bytes
            if self._ids.get(ended.request.alias) == request_id:
                del self._ids[ended.request.alias]
