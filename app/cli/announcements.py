"""Lines about a start for the operator, written once by the process that the operator has started."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from app.admission.keys_file import is_exposed
from app.http.security import is_loopback
from app.settings import Settings
from app.store.location import NO_STORE, default_file, files_of_processes

log = logging.getLogger("carousel")


def url_of(bound: socket.socket, settings: Settings) -> str:
    """Return the URL of a server."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}"


def starting_line(url: str, settings: Settings) -> str:
    """Return the first line of a start."""
    return f"Carousel is starting on {url} with {settings.model_name}"


def ready_line(url: str, description: str) -> str:
    """Return the line about a server that serves requests."""
    return f"Ready: {url}  ({description})"


def warn(settings: Settings, known_port: int | None) -> None:
    """Log the dangers of settings. known_port: see `Listener`."""
    _warn_of_unused_stores(settings, known_port)
    if settings.model_warning:
        log.warning("%s", settings.model_warning)
    if not (settings.requires_keys or is_loopback(settings.host)):
        log.warning("every client that can reach %s may use it; --api-key and --keys-file require keys", settings.host)
    if settings.keys_file is not None and is_exposed(Path(settings.keys_file)):
        log.warning("other users may read or write the keys file %s; run chmod 600 on it", settings.keys_file)
    if "*" in settings.allowed_origins and not settings.requires_keys:
        log.warning("any web page in a browser that can reach this server may use it; --allowed-origins restricts that")


def _warn_of_unused_stores(settings: Settings, known_port: int | None) -> None:
    """Name the stores of API processes that this service does not have, as it had more of them before."""
    if settings.store is not None:
        path = Path(settings.store) if settings.store not in ("", NO_STORE) else None
    else:
        path = default_file(known_port) if known_port is not None else None
    if path is None or not (unused := files_of_processes(path, settings.api_processes)):
        return
    message = "answers in %s cannot be reached, as this service had more API processes before; use --api-processes %d"
    log.warning(message, ", ".join(map(str, unused.values())), max(unused) + 1)
