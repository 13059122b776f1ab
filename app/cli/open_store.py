"""Choice and opening of the store of a server that starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.listener import Listener
from app.settings import Settings, SettingsError
from app.store.location import NO_STORE, default_file, process_file

if TYPE_CHECKING:
    from app.store.state_file import StateFile

log = logging.getLogger("carousel.store")


def open_store(settings: Settings, listener: Listener, index: int = 0) -> StateFile | None:
    """Return the store of an API process by its number; None if nothing is to be kept. Raises `SettingsError` for a
    file that cannot be used, unless it is the default one and there is no place for it: then nothing is kept, and the
    log has a warning.

    A server that takes over from another one waits for the other's store.
    """
    if settings.store == NO_STORE:
        return None
    if settings.store is not None:
        if not settings.store:
            raise SettingsError("store must be the path of a file or none, got an empty text")
        return _open(Path(settings.store), index, settings, listener)
    if listener.known_port is None:
        return None
    advice = "--store FILE names another file, and --store none keeps nothing without this warning"
    if (path := default_file(listener.known_port)) is None:
        log.warning("nothing is kept over a restart, as there is no home folder; %s", advice)
        return None
    from app.store.database import StoreUnavailable  # imported only if used: SQLite

    try:
        return _open(path, index, settings, listener)
    except StoreUnavailable as error:
        log.warning("nothing is kept over a restart: %s; %s", error, advice)
        return None


def _open(path: Path, index: int, settings: Settings, listener: Listener) -> StateFile:
    from app.store.state_file import StateFile  # imported only if used: SQLite

    files = [process_file(path, number) for number in range(settings.api_processes)]
    return StateFile(
        files[index],
        waits=listener.accepts_when_loaded,
        max_days=settings.store_days,
        record_bytes=max(1, settings.store_size // settings.api_processes),
        others=files[:index] + files[index + 1 :],
        page_file=files[0],
        page_bytes=settings.page_bytes,
    )
