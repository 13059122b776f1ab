"""Tenants: owners of requests, one per API key. app.admission.tenant_tables reads the limits that files give them."""

from __future__ import annotations

import hashlib
from functools import lru_cache

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
# Limits of a tenant, and options of the same names for all tenants.
LIMIT_OPTIONS = ("requests_per_minute", "tokens_per_minute", "max_concurrency", "max_websockets")
ID_DIGITS = 16  # of a digest: enough to identify owners, short enough for logs
KEY_CHARACTERS = "printable ASCII without spaces"  # requirement of `is_valid_key`


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one tenant, named like the fields of its table."""

    weight: float = 1.0
    tiers: tuple[str, ...] = ALL_TIERS
    deadline_ms: int | None = None
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    requests_per_minute: int | None = None  # None: the option of this name; 0: no limit
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    max_websockets: int | None = None
    websocket_idle_timeout: float | None = None  # seconds; None: the option of this name


class Tenant(TenantLimits, frozen=True, kw_only=True):
    """Name, key digest and limits of one tenant."""

    name: str
    digest: str = ""  # of its key, from `key_digest`; the key itself is not kept

    @property
    def id(self) -> str:
        """Return its id in queues and in the engine: the first digits of the key's digest."""
        return self.digest[:ID_DIGITS]

    @property
    def has_queue_limit(self) -> bool:
        """Return whether the number of its waiting requests, or their prompt tokens, have a limit of its own."""
        return bool(self.max_queue or self.max_queue_tokens)

    @property
    def owner(self) -> str:
        """Return the owner of its streams and of its pages in the prefix cache, which no other owner can use."""
        return self.id

    @property
    def is_remote(self) -> bool:
        """Return whether it is a network of clients without keys, beyond loopback."""
        return False

    def may(self, service_class: ServiceClass) -> bool:
        """Return whether its requests may be of that class."""
        return TIER_OF_CLASS[service_class] in self.tiers

    @property
    def highest_class(self) -> ServiceClass:
        """Return the highest class that it may use."""
        return min(c for c in ServiceClass if self.may(c))


class AnonymousTenant(Tenant, frozen=True, kw_only=True):
    """Clients of one network, on a server without keys.

    A network has its own queues and share, but owns nothing: clients move between networks, and one network may hold
    many people. So streams are protected by their unguessable IDs, and the prefix cache is shared.
    """

    network: str = ""

    @property
    def id(self) -> str:
        return key_digest(self.network)[:ID_DIGITS] if self.network else ""

    @property
    def owner(self) -> str:
        return ""

    @property
    def is_remote(self) -> bool:
        return bool(self.network)


ANONYMOUS = AnonymousTenant(name="anybody")  # clients on this machine, if no keys are configured


@lru_cache(maxsize=1024)
def anonymous(network: str) -> Tenant:
    """Return the tenant of a client without a key. Its name, which labels metrics, is the same for all networks."""
    return AnonymousTenant(name=ANONYMOUS.name, network=network) if network else ANONYMOUS


def key_digest(key: str) -> str:
    """Return the SHA-256 of a key in hexadecimal digits. Keys are random, so a slow hash with a salt adds nothing."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_valid_key(key: str) -> bool:
    """Return whether a key can be sent in a header, in which clients and servers only agree on ASCII."""
    return key.isascii() and key.isprintable() and " " not in key


def tenant_of_key(key: str) -> Tenant:
    """Return the tenant of a key that has no table."""
    digest = key_digest(key)
    return Tenant(name=f"key-{digest[:6]}", digest=digest)
