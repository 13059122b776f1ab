"""A small SSE client that costs as little as it can: it shares the machine with what it measures."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any


async def stream(host: str, port: int, path: str, body: dict[str, Any]) -> list[float]:
    """POST `body`; the moments (perf_counter) at which each `data:` event arrived. Raises `RuntimeError` on an error."""
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + payload)
    moments: list[float] = []
    tail = b""
    first = True
    while data := await reader.read(1 << 16):
        now = time.perf_counter()
        if first and not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(data.decode("utf-8", "replace"))
        first = False
        data = tail + data
        moments += [now] * data.count(b"\ndata: ")
        tail = data[-6:] if not data.endswith(b"\n") else b"\n"
    writer.close()
    return moments
