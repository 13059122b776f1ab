"""Reader of the keys file: names, key digests and limits of tenants, which `carousel keys` edits.

The file has the same `[tenants.NAME]` tables as the configuration file (app.admission.tenant_tables) and nothing else.
The server reads it at the start, on SIGHUP and when it changes (app.cli.key_reload).
"""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

from app.admission.tenant_tables import TenantError, TenantTable, read_tables, tenants_of
from app.admission.tenants import Tenant

Fingerprint = tuple[int, int, int, int]


class KeysFileError(Exception):
    """A keys file cannot be used; the message names file and field."""


def parse_keys(text: str, path: Path) -> dict[str, TenantTable]:
    """Return the tables of a keys file by name. Raises `KeysFileError`.

    path: of the file, for messages.
    """
    try:
        content = tomllib.loads(text)
        if unknown := sorted(content.keys() - {"tenants"}):
            raise TenantError(f"unknown field {unknown[0]!r}; a keys file has [tenants.NAME] tables only")
        return read_tables(content.get("tenants", {}), "tenants")
    except (tomllib.TOMLDecodeError, TenantError) as error:
        raise KeysFileError(f"keys file {path}: {error}") from None


def read_text(path: Path) -> str:
    """Return the text of a keys file. Raises `KeysFileError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        advice = f"`carousel keys add NAME --keys-file {path}` creates it"
        raise KeysFileError(f"keys file {path} does not exist; {advice}") from None
    except OSError as error:
        raise KeysFileError(f"keys file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise KeysFileError(f"keys file {path} is not UTF-8: {error}") from None


def read_keys_file(path: Path, others: tuple[Tenant, ...]) -> tuple[Tenant, ...]:
    """Return the tenants of a keys file. Raises `KeysFileError`, also for a name or key that is used twice.

    others: tenants of the options and of the configuration file.
    """
    tenants = tenants_of(parse_keys(read_text(path), path))
    names = {tenant.name for tenant in others}
    digests = {tenant.digest: tenant.name for tenant in others}
    for tenant in tenants:
        at = f"keys file {path}: tenants.{tenant.name}"
        if tenant.digest in digests:
            other = digests[tenant.digest]
            raise KeysFileError(f"{at} has the same key as {other!r}, a tenant of --api-key or of the config file")
        if tenant.name in names:
            raise KeysFileError(f"{at} has the name of another tenant, of --api-key or of the config file")
    return tenants


def fingerprint(path: Path) -> Fingerprint | None:
    """Return values that change when a file is edited or replaced; None for a file that cannot be examined."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def is_exposed(path: Path) -> bool:
    """Return whether the file's group or other users may read or write it."""
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False
