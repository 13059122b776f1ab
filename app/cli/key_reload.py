"""Rereads API keys while the server runs: on SIGHUP, and when the keys file changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from app.admission.keys_file import Fingerprint, fingerprint
from app.admission.tenants import Tenant
from app.options import read_keys
from app.service import Service
from app.settings import SettingsError

log = logging.getLogger("carousel")


class KeyReload:
    """Reloader of keys and tenants. Files are examined and read in threads, so that a slow file system does not block
    the event loop. Reads are serialized, so that an older result cannot replace a newer one. Unusable files change
    nothing.
    """

    def __init__(self, service: Service, read_configured: Callable[[], tuple[Tenant, ...]]) -> None:
        """read_configured: returns the tenants of the options and the config file, or raises `SettingsError`."""
        self._service = service
        self._read_configured = read_configured
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._seen: tuple[Fingerprint | None] | None = None  # of the keys file at the last read

    def reload(self) -> None:
        """Start to read all sources again."""
        self._start(self._reload())

    def poll(self) -> None:
        """Start to read the keys file again if it has changed. Does nothing while the last call is unfinished."""
        if self._service.settings.keys_file is not None and (self._polling is None or self._polling.done()):
            self._polling = self._start(self._read_if_changed(self._service.settings.keys_file))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reload(self) -> None:
        async with self._lock:
            try:
                tenants = await asyncio.to_thread(self._read_configured)
                keys_file_tenants = await asyncio.to_thread(read_keys, self._service.settings.keys_file, tenants)
                self._service.replace_tenants(tenants, keys_file_tenants)
            except SettingsError as error:
                log.error("SIGHUP: keys and tenants are unchanged: %s", error)
            else:
                count = _num_keys(len(tenants) + len(keys_file_tenants))
                log.warning("SIGHUP: keys and tenants were reloaded: %s", count)

    async def _read_if_changed(self, keys_file: str) -> None:
        async with self._lock:
            # Examined before it is read, so that the next poll finds a change in between.
            found = (await asyncio.to_thread(fingerprint, Path(keys_file)),)
            if found == self._seen:
                return
            self._seen = found
            before = self._service.settings.keys_file_tenants
            try:
                tenants = await asyncio.to_thread(read_keys, keys_file, self._service.settings.tenants)
                self._service.replace_tenants(self._service.settings.tenants, tenants)
            except SettingsError as error:
                log.error("keys of the keys file are unchanged: %s", error)
                return
        if tenants != before:
            removed = {tenant.digest for tenant in before} - {tenant.digest for tenant in tenants}
            log.warning("keys file %s was reloaded: %s, %d revoked", keys_file, _num_keys(len(tenants)), len(removed))


def _num_keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count} keys"
