"""Minimal-overhead SSE client, for measuring a server on the same machine.

Data is recorded in the call in which the event loop reads it. Waking a task for each token, as a stream reader does,
would cost several times as much.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

try:
    from uvloop import new_event_loop
except ImportError:  # uvloop is not available for every system
    from asyncio import new_event_loop

Result = TypeVar("Result")
Part = tuple[float, bytes]  # arrival time (perf_counter), data


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine like `asyncio.run`, on the fastest available event loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


class _Response(asyncio.Protocol):
    def __init__(self, take: Callable[[Part], object]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._has_begun = False

    def data_received(self, data: bytes) -> None:
        self._take((time.perf_counter(), data))
        if not self._has_begun:
            self._has_begun = True
            if not data.startswith(b"HTTP/1.1 200"):
                self._end(RuntimeError(data.decode("utf-8", "replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def receive(
    host: str,
    port: int,
    path: str,
    body: dict[str, Any],
    take: Callable[[Part], object],
    rcvlowat: int | None = None,
    key: str | None = None,
    idempotency_key: str | None = None,
) -> None:
    """POST `body` and pass the response, including its headers, to `take` as it arrives.

    Raises `RuntimeError` for any status but 200. wakes_at: bytes that must arrive before this process is woken; the
    end of the response wakes it at once.
    """
    payload = json.dumps(body).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    if idempotency_key:
        authorization += f"Idempotency-Key: {idempotency_key}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n{authorization}\r\n"
    )
    loop = asyncio.get_running_loop()
    connected, response = await loop.create_connection(lambda: _Response(take), host, port)
    transport = cast(asyncio.Transport, connected)  # uvloop's transports do not inherit from asyncio's
    if rcvlowat is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, rcvlowat)
    try:
        transport.write(head.encode() + payload)
        await response.ended
    finally:
        transport.close()


async def stream(
    host: str, port: int, path: str, body: dict[str, Any], wakes_at: int | None = None, key: str | None = None
) -> list[float]:
    """POST `body` and return the arrival time (perf_counter) of each `data:` event. wakes_at: as for `receive`."""
    parts: list[Part] = []
    await receive(host, port, path, body, parts.append, wakes_at, key)
    moments: list[float] = []
    tail = b""
    for moment, data in parts:
        moments += [moment] * (tail + data).count(b"\ndata: ")
        tail = data[-6:] if b"\ndata: " not in data[-7:] else b""
    return moments


async def text(host: str, port: int, path: str, body: dict[str, Any]) -> str:
    """POST `body` to /v1/completions and return the text of the whole stream."""
    parts: list[Part] = []
    await receive(host, port, path, body, parts.append)
    pieces = []
    for line in b"".join(data for _, data in parts).split(b"\n"):
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            pieces += [choice["text"] for choice in chunk["choices"]]
    return "".join(pieces)
