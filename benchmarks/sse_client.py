"""A small SSE client that costs as little as it can: it shares the machine with what it measures."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any


async def chunks(
    host: str, port: int, path: str, body: dict[str, Any], wakes_at: int | None = None, key: str | None = None
) -> AsyncIterator[bytes]:
    """The response of a POST as it arrives, headers included. Raises `RuntimeError` when it is not a 200.

    wakes_at: bytes that must have come before this process is woken; the end of the response wakes it at once.
    """
    payload = json.dumps(body).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n{authorization}\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    if wakes_at is not None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)
    try:
        writer.write(head.encode() + payload)
        first = True
        while data := await reader.read(1 << 16):
            if first and not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data.decode("utf-8", "replace"))
            first = False
            yield data
    finally:
        writer.close()


async def stream(
    host: str, port: int, path: str, body: dict[str, Any], wakes_at: int | None = None, key: str | None = None
) -> list[float]:
    """POST `body`; the moments (perf_counter) at which each `data:` event arrived. wakes_at: as for `chunks`."""
    moments: list[float] = []
    tail = b""
    async for data in chunks(host, port, path, body, wakes_at, key):
        now = time.perf_counter()
        moments += [now] * (tail + data).count(b"\ndata: ")
        tail = data[-6:] if b"\ndata: " not in data[-7:] else b""
    return moments


async def text(host: str, port: int, path: str, body: dict[str, Any]) -> str:
    """POST `body` to /v1/completions; the text of the whole stream."""
    raw = b"".join([data async for data in chunks(host, port, path, body)])
    pieces = []
    for line in raw.split(b"\n"):
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            pieces += [choice["text"] for choice in chunk["choices"]]
    return "".join(pieces)
