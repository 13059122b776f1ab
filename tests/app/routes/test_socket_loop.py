"""Loop of a WebSocket, with a session that ends slowly."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from app.routes import socket_loop


class SlowSession:
    """Session that ignores its first cancellation."""

    idle_seconds = 0.0

    def __init__(self) -> None:
        self.tenant = SimpleNamespace(websocket_idle_timeout=60.0)
        self.opened, self.cancelled = asyncio.Event(), asyncio.Event()
        self.calls: list[str] = []

    async def open(self) -> None:
        self.opened.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        self.cancelled.set()
        await asyncio.Event().wait()

    async def ended(self) -> str:
        return await asyncio.get_running_loop().create_future()

    async def detach(self) -> None:
        self.calls.append("detach")

    def release(self, *, is_lost: bool) -> None:
        self.calls.append("release")


async def test_a_connection_that_is_cancelled_twice_returns_its_memory():
    """The second cancellation comes while its tasks end."""
    session: Any = SlowSession()
    socket: Any = SimpleNamespace(accept=lambda subprotocol: asyncio.sleep(0), scope={"extensions": {}})
    running = asyncio.create_task(socket_loop.run(socket, session, None))
    await session.opened.wait()
    running.cancel()
    await session.cancelled.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert session.calls == ["detach", "release"]
