"""Doing something for a client for as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

Done = TypeVar("Done")


@asynccontextmanager
async def while_present(receive: Receive) -> AsyncIterator[None]:
    """What is done inside is cancelled when the client of an HTTP request leaves, and the block ends there, quietly.
    The request's body must have been read."""
    # A limit without a time, until there is one: `asyncio.timeout` tells its own cancellation from everybody else's.
    presence = asyncio.timeout(None)
    try:
        async with presence:
            watching = asyncio.create_task(_watch(receive, presence))
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not presence.expired():
            raise


async def done_for(receive: Receive, work: Awaitable[Done]) -> Done:
    """What `work` makes. Raises `ClientDisconnect`, with `work` cancelled, when the client leaves meanwhile."""
    async with while_present(receive):
        return await work
    raise ClientDisconnect


async def _watch(receive: Receive, presence: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    presence.reschedule(asyncio.get_running_loop().time())
