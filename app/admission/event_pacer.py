"""EventPacer: limit on the rate at which events of all WebSocket clients are handled."""

from __future__ import annotations

import asyncio
from collections import deque

from app.admission.cell_rate import CellRate

MAX_EVENTS_PER_SECOND = 1000  # an event takes 0.1 to 0.2 ms, so this is at most a fifth of the event loop
MAX_BURST = 16  # events handled without a pause after a quiet time


class EventPacer:
    """Cell rate with a first-in, first-out queue.

    A socket requests one turn at a time, so flooding sockets alternate with others.
    """

    def __init__(self, per_second: float = MAX_EVENTS_PER_SECOND, burst: int = MAX_BURST) -> None:
        self._rate = CellRate(per_second, burst - 1)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def wait_turn(self) -> None:
        """Wait until one event may be handled."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._take(loop.time()):
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._schedule(loop)
        await turn

    def _take(self, now: float) -> bool:
        if self._rate.wait(now) > 0:
            return False
        self._rate.spend(now)
        return True

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._waiting:
            self._timer = loop.call_later(self._rate.wait(loop.time()), self._admit, loop)

    def _admit(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._waiting:
            if self._waiting[0].done():  # cancelled with its connection
                self._waiting.popleft()
            elif self._take(loop.time()):
                self._waiting.popleft().set_result(None)
            else:
                break
        self._schedule(loop)
