"""Connections to a running server without an HTTP client, and waiting for conditions."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import httpx

from tests.conftest import Server
from tests.limits import HANG_SECONDS


def open_socket(server: Server) -> socket.socket:
    """Return a new connection to a server."""
    url = httpx.URL(server.url)
    return socket.create_connection((url.host, url.port), timeout=HANG_SECONDS)


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes until the other side closes the connection."""
    chunks = []
    while chunk := connection.recv(1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`; fail after 30 s."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
