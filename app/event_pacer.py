"""EventPacer: the rate at which events of WebSocket clients are handled, all sockets together."""

from __future__ import annotations

import asyncio
from collections import deque

MAX_EVENTS_PER_SECOND = 1000  # an event takes 0.1 to 0.2 ms, so this is at most a fifth of the event loop
MAX_BURST = 16  # events handled without a pause after a quiet time


class EventPacer:
    """Generic cell rate algorithm (ITU-T I.371) with a first-in, first-out queue.

    A socket asks for one turn at a time, so sockets that flood take turns with sockets that do not.
    """

    def __init__(self, per_second: float = MAX_EVENTS_PER_SECOND, burst: int = MAX_BURST) -> None:
        self._interval = 1.0 / per_second
        self._tolerance = (burst - 1) * self._interval
        self._expected_at = 0.0  # when the next event would come at exactly the permitted rate
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until one event may be handled."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._take(loop.time()):
            return
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        self._schedule(loop)
        await mine

    def _take(self, now: float) -> bool:
        if self._expected_at - self._tolerance > now:
            return False
        self._expected_at = max(self._expected_at, now) + self._interval
        return True

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._waiting:
            self._timer = loop.call_at(self._expected_at - self._tolerance, self._let_in, loop)

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._waiting:
            if self._waiting[0].done():  # cancelled with its connection
                self._waiting.popleft()
            elif self._take(loop.time()):
                self._waiting.popleft().set_result(None)
            else:
                break
        self._schedule(loop)
