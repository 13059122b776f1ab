"""BoundedKeys: values by tenant and key, of which each tenant has a limited number."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedKeys(Generic[Value]):
    """Mapping of tenants and keys to values, bounded for each tenant and in all.

    A tenant that adds too many loses its own oldest ones. If all tenants together have too many, the one with the most
    loses its oldest. Every operation takes constant time.
    """

    def __init__(self, total: int, per_tenant: int) -> None:
        self.evicted = 0
        self._total = total
        self._per_tenant = per_tenant
        self._size = 0
        self._tenants: dict[str, OrderedDict[str, Value]] = {}  # the oldest key first; none is empty
        self._by_size: dict[int, OrderedDict[str, None]] = {}  # tenants by their number of keys; none is empty
        self._largest = 0  # largest number of keys of one tenant

    def __len__(self) -> int:
        return self._size

    def get(self, tenant: str, key: str) -> Value | None:
        """Return a value; None for an unknown key."""
        keys = self._tenants.get(tenant)
        return None if keys is None else keys.get(key)

    def add(self, tenant: str, key: str, value: Value) -> None:
        """Add a value under a new key, and evict others beyond the bounds."""
        keys = self._tenants.setdefault(tenant, OrderedDict())
        assert key not in keys
        keys[key] = value
        self._size += 1
        self._move(tenant, len(keys) - 1, len(keys))
        if len(keys) > self._per_tenant:
            self._evict(tenant)
        elif self._size > self._total:
            self._evict(next(iter(self._by_size[self._largest])))

    def remove(self, tenant: str, key: str) -> None:
        """Remove a key."""
        keys = self._tenants[tenant]
        del keys[key]
        self._size -= 1
        self._move(tenant, len(keys) + 1, len(keys))
        if not keys:
            del self._tenants[tenant]

    def _evict(self, tenant: str) -> None:
        self.evicted += 1
        self.remove(tenant, next(iter(self._tenants[tenant])))

    def _move(self, tenant: str, before: int, after: int) -> None:
        """Count a tenant whose number of keys has changed by one."""
        if before:
            del self._by_size[before][tenant]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, OrderedDict())[tenant] = None
        self._largest = max(self._largest, after)
        if self._largest not in self._by_size:
            self._largest = after
