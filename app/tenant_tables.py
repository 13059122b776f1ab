"""Reader of `[tenants.NAME]` tables, in the configuration file and in the keys file.

[tenants.night-reports]
key = "sk-..."        # or key_sha256 = "...", its SHA-256 in 64 hexadecimal digits
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

import math
import re
from typing import Any

import msgspec

from app.tenants import ALL_TIERS, LIMITS, SENT, Tenant, TenantLimits, can_be_sent, key_digest

DIGEST = re.compile("[0-9a-f]{64}")


class TenantError(ValueError):
    """A table has a value that cannot be used; the message names table and field."""


class TenantTable(TenantLimits, frozen=True, kw_only=True):
    """One table as it is written."""

    key: str | None = None
    key_sha256: str | None = None


def read_tenants(tables: Any, where: str) -> tuple[Tenant, ...]:
    """Return the tenants of `[tenants.NAME]` tables. Raises `TenantError`.

    where: the name of the tables in messages.
    """
    if not isinstance(tables, dict):
        raise TenantError(f"{where} must be tables such as [tenants.alice]")
    return tuple(_read_tenant(name, table, f"{where}.{name}") for name, table in tables.items())


def _read_tenant(name: str, content: Any, at: str) -> Tenant:
    try:
        table = msgspec.convert(content, TenantTable)
    except msgspec.ValidationError as error:
        raise TenantError(f"{at}: {error}") from None
    digest = _digest(table, at)
    _check_limits(table, at)
    limits = {field: getattr(table, field) for field in TenantLimits.__struct_fields__}
    return Tenant(name=name, digest=digest, **limits)


def _digest(table: TenantTable, at: str) -> str:
    if (table.key is None) == (table.key_sha256 is None):
        given = "neither" if table.key is None else "both"
        raise TenantError(f"{at} must have either key or key_sha256, but has {given}")
    if table.key_sha256 is not None:
        if not DIGEST.fullmatch(table.key_sha256):
            raise TenantError(f"{at}.key_sha256 must be 64 lower-case hexadecimal digits, not {table.key_sha256!r}")
        return table.key_sha256
    assert table.key is not None
    if not table.key or not can_be_sent(table.key):
        raise TenantError(f"{at}.key must be {SENT}")
    return key_digest(table.key)


def _check_limits(table: TenantLimits, at: str) -> None:
    if not (0 < table.weight < math.inf):
        raise TenantError(f"{at}.weight must be a positive number, not {table.weight}")
    wrong = [tier for tier in table.tiers if tier not in ALL_TIERS]
    if wrong or not table.tiers:
        raise TenantError(f"{at}.tiers must be some of {', '.join(ALL_TIERS)}, not {wrong or 'none'}")
    least = {"deadline_ms": 1, "max_queue": 1, "max_queue_tokens": 1, **dict.fromkeys(LIMITS, 0)}
    for limit, minimum in least.items():
        value = getattr(table, limit)
        if value is not None and not value >= minimum:  # refuses NaN too
            raise TenantError(f"{at}.{limit} must be at least {minimum}, not {value}")
