"""Shelf: records within bounds of number, bytes and age.

When a bound is reached, the tenant with the largest share loses its oldest record first, so that no tenant can displace
the records of others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from app.conversations.store import Owned, Usage

# Expired records that one call removes at most: each may have thousands of items. Others are absent, and still count.
MAX_EXPIRED = 4
Record = TypeVar("Record", bound=Owned)


class Limits(NamedTuple):
    """Bounds of a shelf. seconds: for which a record is kept after its last change."""

    records: int = 1000
    bytes: int = 64 << 20
    seconds: float = 3600.0


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class _Share:
    """Records of one tenant, the oldest first, and their bytes."""

    ids: OrderedDict[str, None] = field(default_factory=OrderedDict)
    bytes: int = 0


class Entry(NamedTuple, Generic[Record]):
    """Record with the bytes that were counted for it and the time of its last change."""

    record: Record
    size: int
    changed_at: float


class Shelf(Generic[Record]):
    """Records by id."""

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        on_removed: Callable[[Record], None] = lambda record: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """on_removed: called with each record that was removed, for whatever reason."""
        self.limits = limits
        self._on_removed = on_removed
        self._clock = clock
        self._entries: OrderedDict[str, Entry[Record]] = OrderedDict()  # the oldest change first
        self._tenants: dict[str, _Share] = {}
        self._bytes = 0
        self._evicted = 0

    @property
    def usage(self) -> Usage:
        """Return number and bytes of the records, and the number of evicted ones."""
        self._expire()
        return Usage(len(self._entries), self._bytes, self._evicted)

    def __iter__(self) -> Iterator[Record]:
        self._expire()
        return (entry.record for entry in self._entries.values() if not self._has_expired(entry))

    def get(self, record_id: str, owner: str | None = None) -> Record | None:
        """Return a record of an owner, or of any if `owner` is None."""
        self._expire()
        entry = self._entries.get(record_id)
        if entry is None or owner not in (None, entry.record.owner):
            return None
        if self._has_expired(entry):
            self.remove(record_id)
            return None
        return entry.record

    def peek(self, record_id: str) -> Record | None:
        """Return a record, also one that has expired and is not yet removed."""
        entry = self._entries.get(record_id)
        return None if entry is None else entry.record

    def put(self, record: Record) -> None:
        """Add a record, or replace the one with its id, and evict what is then too much."""
        self._take(record.id)
        size = record.size
        self._entries[record.id] = Entry(record, size, self._clock())
        self._tenants.setdefault(record.tenant, _Share()).ids[record.id] = None
        self.charge(record.tenant, size)
        self._expire()
        while self._entries and (len(self._entries) > self.limits.records or self._bytes > self.limits.bytes):
            self._evicted += 1
            largest = max((share for share in self._tenants.values() if share.ids), key=self._part)
            self.remove(next(iter(largest.ids)))

    def remove(self, record_id: str) -> bool:
        """Remove a record and return whether it existed."""
        record = self._take(record_id)
        if record is None:
            return False
        self._on_removed(record)
        return True

    def charge(self, tenant: str, size: int) -> None:
        """Count bytes for a tenant beside those of its records; a negative size returns them."""
        share = self._tenants.setdefault(tenant, _Share())
        share.bytes += size
        self._bytes += size
        if not share.bytes:
            del self._tenants[tenant]

    def _take(self, record_id: str) -> Record | None:
        """Remove a record without notice."""
        entry = self._entries.pop(record_id, None)
        if entry is None:
            return None
        del self._tenants[entry.record.tenant].ids[record_id]
        self.charge(entry.record.tenant, -entry.size)
        return entry.record

    def _part(self, share: _Share) -> float:
        """Return the larger of the parts of both limits that a tenant has."""
        return max(len(share.ids) / self.limits.records, share.bytes / self.limits.bytes)

    def _has_expired(self, entry: Entry[Record]) -> bool:
        return self._clock() - entry.changed_at >= self.limits.seconds

    def _expire(self) -> None:
        """Remove the oldest records that have expired, but not all at once."""
        for _ in range(MAX_EXPIRED):
            if not self._entries:
                return
            record_id, entry = next(iter(self._entries.items()))
            if not self._has_expired(entry):
                return
            self.remove(record_id)
