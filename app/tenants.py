"""Tenants: whose requests they are. Each API key is one; the configuration file may say more about it.

[tenants.night-reports]
key = "sk-..."
weight = 0.5          # its share of a class, against 1 for others
tiers = ["flex"]      # which service tiers it may ask for
deadline_ms = 60000   # of requests that name none
max_queue = 100       # requests of it that may wait at once
max_queue_tokens = 200000
requests_per_minute = 600
tokens_per_minute = 1000000
max_concurrency = 64  # choices of its requests that may wait and run at once
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any

import msgspec

from engine.types import ServiceClass

TIERS = {
    "priority": ServiceClass.INTERACTIVE,
    "default": ServiceClass.STANDARD,
    "auto": ServiceClass.STANDARD,
    "flex": ServiceClass.BATCH,
}
TIER_OF_CLASS = {
    ServiceClass.INTERACTIVE: "priority",
    ServiceClass.STANDARD: "default",
    ServiceClass.BATCH: "flex",
}
ALL_TIERS = tuple(TIER_OF_CLASS.values())
LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrency")  # of a tenant, or of all by options
SENT = "printable ASCII without spaces"  # what `can_be_sent` wants


class TenantError(ValueError):
    """What is said of a tenant cannot be used; the message names it."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key's name and limits."""

    name: str
    key: str = ""
    weight: float = 1.0
    tiers: tuple[str, ...] = ALL_TIERS
    deadline_ms: int | None = None
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    requests_per_minute: int | None = None  # None: as the option of this name has it; 0: no limit
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None

    @property
    def id(self) -> str:
        """Identify it in queues and in the engine: a digest of its key."""
        return owner_id(self.key) if self.key else ""

    @property
    def owner(self) -> str:
        """Identify the owner of its streams and of its pages in the prefix cache, which no other owner can use."""
        return self.id

    @property
    def is_remote(self) -> bool:
        """Whether it is a network of clients without keys, beyond loopback."""
        return False

    def may(self, service_class: ServiceClass) -> bool:
        """Whether its requests may be of that class."""
        return TIER_OF_CLASS[service_class] in self.tiers

    @property
    def highest(self) -> ServiceClass:
        """The highest class that it may ask for."""
        return min(c for c in ServiceClass if self.may(c))


class AnonymousTenant(Tenant, frozen=True, kw_only=True):
    """The clients of one network, on a server without keys.

    A network has its own place in queues and turns, but owns nothing: clients move between networks, and one network
    may hold many people. So streams are protected by their unguessable IDs, and the prefix cache is shared.
    """

    network: str = ""

    @property
    def id(self) -> str:
        return owner_id(self.network) if self.network else ""

    @property
    def owner(self) -> str:
        return ""

    @property
    def is_remote(self) -> bool:
        return bool(self.network)


ANYBODY = AnonymousTenant(name="anybody")  # clients on this machine, where no keys are configured


@lru_cache(maxsize=1024)
def anonymous(network: str) -> Tenant:
    """Return the tenant of a client without a key. Its name, which labels metrics, is the same for all networks."""
    return AnonymousTenant(name=ANYBODY.name, network=network) if network else ANYBODY


def owner_id(key: str) -> str:
    """A digest of a key, short enough for logs."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def can_be_sent(key: str) -> bool:
    """Whether it can be part of a header, in which clients and servers agree on no letters but ASCII's."""
    return key.isascii() and key.isprintable() and " " not in key


def of_key(key: str) -> Tenant:
    """A tenant of which nothing is known but its key."""
    return Tenant(name=f"key-{owner_id(key)[:6]}", key=key)


def read_tenants(tables: Any, where: str) -> tuple[Tenant, ...]:
    """`[tenants.NAME]` tables. Raises `TenantError`."""
    if not isinstance(tables, dict):
        raise TenantError(f"{where} must be tables such as [tenants.alice]")
    tenants = []
    for name, table in tables.items():
        at = f"{where}.{name}"
        try:
            tenant = msgspec.convert({"name": name, **(table if isinstance(table, dict) else {"": table})}, Tenant)
        except msgspec.ValidationError as error:
            raise TenantError(f"{at}: {error}") from None
        if not tenant.key:
            raise TenantError(f"{at} needs a key")
        if not can_be_sent(tenant.key):
            raise TenantError(f"{at}.key must be {SENT}")
        if not (0 < tenant.weight < math.inf):
            raise TenantError(f"{at}.weight must be a positive number, not {tenant.weight}")
        wrong = [tier for tier in tenant.tiers if tier not in ALL_TIERS]
        if wrong or not tenant.tiers:
            raise TenantError(f"{at}.tiers must be some of {', '.join(ALL_TIERS)}, not {wrong or 'none'}")
        for limit in ("deadline_ms", "max_queue", "max_queue_tokens"):
            value = getattr(tenant, limit)
            if value is not None and value < 1:
                raise TenantError(f"{at}.{limit} must be at least 1, not {value}")
        for limit in LIMITS:
            value = getattr(tenant, limit)
            if value is not None and value < 0:
                raise TenantError(f"{at}.{limit} must be at least 0, not {value}")
        tenants.append(tenant)
    return tuple(tenants)
