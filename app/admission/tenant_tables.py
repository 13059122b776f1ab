"""Reader of `[tenants.NAME]` tables, in the configuration file and in the keys file.

[tenants.night-reports]
key = "sk-..."        # or key_sha256 = "...", its SHA-256 in 64 hexadecimal digits
weight = 0.5          # share of a class, against 1 for other tenants
tiers = ["flex"]      # permitted service tiers
deadline_ms = 60000   # for requests without a deadline
max_queue = 100       # maximum waiting requests
max_queue_tokens = 200000
requests_per_minute = 600
tokens_per_minute = 1000000
max_concurrency = 64  # maximum choices that wait or run
max_websockets = 16   # maximum open WebSockets
websocket_idle_timeout = 600.0  # seconds
created = 2026-11-27T12:00:00Z  # of the key; written and listed by `carousel keys`, not used by the server
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from app.admission.tenants import (
    ALL_TIERS,
    KEY_CHARACTERS,
    LIMIT_OPTIONS,
    Tenant,
    TenantLimits,
    is_valid_key,
    key_digest,
)

DIGEST_PATTERN = re.compile("[0-9a-f]{64}")
POSITIVE_LIMITS = ("deadline_ms", "max_queue", "max_queue_tokens", "websocket_idle_timeout")
MIN_VALUES = dict.fromkeys(LIMIT_OPTIONS, 0) | dict.fromkeys(POSITIVE_LIMITS, 1)
LIMIT_FIELDS = TenantLimits.__struct_fields__


class TenantError(ValueError):
    """A table has an invalid value; the message names table and field."""


class TenantTable(TenantLimits, frozen=True, kw_only=True):
    """One table as written in a file."""

    key: str | None = None
    key_sha256: str | None = None
    created: datetime | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the key."""
        return self.key_sha256 or key_digest(self.key or "")


def read_tables(content: Any, where: str) -> dict[str, TenantTable]:
    """Return `[tenants.NAME]` tables by name. Raises `TenantError`.

    where: name of the tables in messages.
    """
    if not isinstance(content, dict):
        raise TenantError(f"{where} must be tables such as [tenants.alice]")
    tables: dict[str, TenantTable] = {}
    names: dict[str, str] = {}  # by digest
    for name, fields in content.items():
        tables[name] = table = _read_table(fields, f"{where}.{name}")
        if (other := names.setdefault(table.digest, name)) != name:
            raise TenantError(f"{where}.{name} and {where}.{other} have the same key")
    return tables


def tenants_of(tables: Mapping[str, TenantTable]) -> tuple[Tenant, ...]:
    """Return the tenants that tables describe."""
    return tuple(
        Tenant(name=name, digest=table.digest, **{field: getattr(table, field) for field in LIMIT_FIELDS})
        for name, table in tables.items()
    )


def _read_table(fields: Any, at: str) -> TenantTable:
    try:
        table = msgspec.convert(fields, TenantTable)
    except msgspec.ValidationError as error:
        raise TenantError(f"{at}: {error}") from None
    _check_key(table, at)
    _check_limits(table, at)
    return table


def _check_key(table: TenantTable, at: str) -> None:
    if (table.key is None) == (table.key_sha256 is None):
        given = "neither" if table.key is None else "both"
        raise TenantError(f"{at} must have either key or key_sha256, but has {given}")
    if table.key is not None and not (table.key and is_valid_key(table.key)):
        raise TenantError(f"{at}.key must be {KEY_CHARACTERS}")
    if table.key_sha256 is not None and not DIGEST_PATTERN.fullmatch(table.key_sha256):
        # The value is not repeated in the message, as it may be a key that was put there by mistake.
        raise TenantError(f"{at}.key_sha256 must be 64 lower-case hexadecimal digits, the SHA-256 of a key")


def _check_limits(table: TenantLimits, at: str) -> None:
    if not (0 < table.weight < math.inf):
        raise TenantError(f"{at}.weight must be a positive number, got {table.weight}")
    wrong = [tier for tier in table.tiers if tier not in ALL_TIERS]
    if wrong or not table.tiers:
        raise TenantError(f"{at}.tiers must be some of {', '.join(ALL_TIERS)}, got {wrong or 'none'}")
    for limit, minimum in MIN_VALUES.items():
        value = getattr(table, limit)
        if value is not None and not value >= minimum:  # also refuses NaN
            raise TenantError(f"{at}.{limit} must be at least {minimum}, got {value}")
