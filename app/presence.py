"""Doing something for a client for as long as it is there, and being done with one that takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

Done = TypeVar("Done")

# A scope's extension with one function: hang_up() ends the connection at once, whatever it has not sent yet.
HANG_UP = "carousel.hang_up"
KEPT = "carousel.kept"  # likewise: kept() has how many bytes it keeps for the client, which has not taken them


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


def kept_of(scope: Scope) -> Callable[[], int]:
    """How many bytes the server keeps for the client; where it does not tell, always as many."""
    extension = (scope.get("extensions") or {}).get(KEPT, {})
    return extension.get("kept", lambda: 0)  # type: ignore[no-any-return]


async def hang_up(scope: Scope, receive: Receive) -> None:
    """End the connection, where the server can. A server that only ends the answer would keep it, and what has not been
    taken of it, for as long as the client likes."""
    end = (scope.get("extensions") or {}).get(HANG_UP, {}).get("hang_up")
    if end is not None:
        end()
        while (await receive())["type"] != "http.disconnect":  # which the server then knows too
            pass
