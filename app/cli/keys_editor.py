"""Editor of the keys file: adds, replaces and revokes keys, and preserves comments and hand-written fields.

Concurrent writers of one file are serialized by a lock on a file beside it. A new version is written to a temporary
file and renamed, so that readers always find a complete old or new file, even after a crash. Only the digest of a key
is stored.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomlkit
from tomlkit.items import Table

from app.admission.keys_file import KeysFileError, parse_keys, read_text
from app.admission.tenants import key_digest

KEY_PREFIX = "sk-carousel-"
KEY_BYTES = 32
NO_LIMITS: Mapping[str, Any] = MappingProxyType({})
HEADER = "# API keys of Carousel; `carousel keys` edits this file. It holds digests, from which no key can be found.\n"


def new_key() -> str:
    """Return a random key of 256 bits."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def add_key(path: Path, name: str, limits: Mapping[str, Any] = NO_LIMITS, *, replace: bool = False) -> str:
    """Store a new tenant and return its key. Raises `KeysFileError` and changes nothing if that is not possible.

    limits: fields of the tenant's table. replace: an existing tenant gets a new key and keeps its other limits.
    """
    key = new_key()
    with _edited(path) as tables:
        if name in tables and not replace:
            raise KeysFileError(f"keys file {path} already has a tenant {name!r}; --replace gives it a new key")
        table = tables[name] if name in tables else tomlkit.table()
        table.pop("key", None)
        table["key_sha256"] = key_digest(key)
        table["created"] = datetime.now(UTC).replace(microsecond=0)
        table.update(limits)
        tables[name] = table
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a tenant. Raises `KeysFileError` if no tenant has that name."""
    read_text(path)  # raises for a missing file, which must not be created here
    with _edited(path) as tables:
        if name not in tables:
            near = difflib.get_close_matches(name, tables, 1)
            advice = f"; the nearest name is {near[0]!r}" if near else ""
            raise KeysFileError(f"keys file {path} has no tenant {name!r}{advice}")
        del tables[name]


@contextmanager
def _edited(path: Path) -> Iterator[Table]:
    """Yield the tenants' tables for modification, and write the file at the end of the block."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            text = read_text(path) if path.exists() else HEADER
            parse_keys(text, path)
            document = tomlkit.parse(text)
            tables = document.setdefault("tenants", tomlkit.table(is_super_table=True))
            if not isinstance(tables, Table):
                raise KeysFileError(f"keys file {path} cannot be edited: `tenants` is not written as [tenants.NAME]")
            yield tables
            changed = tomlkit.dumps(document)
            parse_keys(changed, path)  # refuses limits that the server would refuse
            _replace(path, changed)
    except OSError as error:
        raise KeysFileError(f"keys file {path} cannot be written: {error.strerror}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for other writers. The lock file stays: without it two writers could hold locks on different files."""
    target = path.resolve()
    lock = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    """Replace a file, readable by its owner only, in one step. A link to a file stays a link."""
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # with mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _keep_owner(descriptor, target)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or the rename could be lost with the machine's power
    finally:
        os.close(folder)


def _keep_owner(descriptor: int, target: Path) -> None:
    """Give a new version to the owner of the old one, as root may edit the file of a service's user."""
    with suppress(FileNotFoundError):
        old, new = target.stat(), os.fstat(descriptor)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
