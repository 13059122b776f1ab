"""Cancellation of work for a client that disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

Done = TypeVar("Done")


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client of an HTTP request disconnects, and leave it without an exception. The request's
    body must have been read.
    """
    # A timeout without a time until one is set: `asyncio.timeout` distinguishes its own cancellation from others.
    timeout = asyncio.timeout(None)
    try:
        async with timeout:
            watching = asyncio.create_task(_watch(receive, timeout))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not timeout.expired():
            raise


async def run_unless_disconnected(receive: Receive, work: Awaitable[Done]) -> Done:
    """Return the result of `work`. Raises `ClientDisconnect`, with `work` cancelled, if the client disconnects."""
    async with cancel_on_disconnect(receive):
        return await work
    raise ClientDisconnect


async def _watch(receive: Receive, cancellation: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancellation.reschedule(asyncio.get_running_loop().time())
