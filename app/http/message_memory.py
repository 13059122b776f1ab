"""MessageMemory: memory for the messages of one WebSocket, from the same budget as bodies of HTTP requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

from app.admission.body_budget import FREE_BYTES, BodyMemory
from app.errors import ApiError

MESSAGE_MEMORY = "carousel.message_memory"  # scope extension of the application: makes the memory of one message
# Scope extension with one function: detach() returns the memory of the message that the application handles, if it has
# any, for an application that goes on with the message after it has asked for the next one.
HANDLED_MEMORY = "carousel.handled_memory"


class MessageMemory:
    """Memory of the message that arrives, of those that the application has not taken, and of one that it handles."""

    def __init__(
        self,
        extensions: MutableMapping[str, Any],
        max_bytes: int,
        on_granted: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        """extensions: of the scope. max_bytes: of a message, whose size is unknown until it is complete."""
        self._extensions = extensions
        self._max_bytes = max_bytes
        self._on_granted = on_granted
        self._on_refused = on_refused
        self._received = 0  # bytes of the message that arrives
        self._arriving: BodyMemory | None = None
        self._queued: deque[BodyMemory | None] = deque()  # of each message that the application has not taken
        self._handled: BodyMemory | None = None
        self._waiting: asyncio.Task[None] | None = None
        extensions[HANDLED_MEMORY] = {"detach": self.detach_handled}

    @property
    def is_waiting(self) -> bool:
        """Return whether the rest of a message must not be parsed yet."""
        return self._waiting is not None

    def count(self, size: int) -> None:
        """Count received bytes; reserve memory for a message that is no longer small."""
        self._received += size
        if self._received > FREE_BYTES and self._arriving is None and MESSAGE_MEMORY in self._extensions:
            self._arriving = self._extensions[MESSAGE_MEMORY]["memory"]()
            self._waiting = asyncio.create_task(self._reserve(self._arriving))

    def complete(self) -> None:
        """Count the message that has arrived as one that the application can take."""
        if self._arriving is not None:
            self._arriving.keep(self._received)
        self._queued.append(self._arriving)
        self._arriving, self._received = None, 0

    def take(self) -> None:
        """Count the oldest message as one that the application handles."""
        self._handled = self._queued.popleft() if self._queued else None

    def release_handled(self) -> None:
        """Return the memory of the message that the application has handled."""
        if self._handled is not None:
            self._handled.keep(0)
            self._handled = None

    def detach_handled(self) -> BodyMemory | None:
        """Return the memory of the message that the application handles, which the caller must return."""
        memory, self._handled = self._handled, None
        return memory

    def close(self) -> None:
        """Return all memory."""
        if self._waiting is not None:
            self._waiting.cancel()
        for memory in (self._arriving, *self._queued, self._handled):
            if memory is not None:
                memory.keep(0)

    async def _reserve(self, memory: BodyMemory) -> None:
        try:
            await memory.reserve(self._max_bytes)
        except ApiError:
            self._waiting = None
            self._on_refused()
        else:
            self._waiting = None
            self._on_granted()
