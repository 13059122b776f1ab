"""FramePace: rate of the frames of one WebSocket, and the time since it was in use."""

from __future__ import annotations

import asyncio
import time

from app.admission.cell_rate import CellRate
from app.admission.event_pacer import EventPacer

MAX_EVENTS_PER_SECOND = 100  # of one socket, after a burst of `MAX_BURST`
MAX_BURST = 100
BYTES_PER_EVENT = 16 << 10  # received or sent bytes that count as one further event


class FramePace:
    """Pace of one socket. A client that sends too fast is read more slowly."""

    def __init__(self) -> None:
        self.rate = CellRate(MAX_EVENTS_PER_SECOND, MAX_BURST - 1)
        self.active_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Return the time since the last use."""
        return time.monotonic() - self.active_at

    def mark_active(self) -> None:
        """Count the socket as in use now."""
        self.active_at = time.monotonic()

    async def wait_turn(self, size: int, pacer: EventPacer) -> None:
        """Wait until a received frame of `size` characters may be handled. pacer: of all sockets."""
        self.mark_active()
        if wait := self.rate.wait(self.active_at):
            await asyncio.sleep(wait)
        await pacer.wait_turn()
        self.rate.spend(time.monotonic(), 1 + size / BYTES_PER_EVENT)

    def count_events(self, number: int) -> None:
        """Count a frame as so many further events."""
        self.rate.spend(time.monotonic(), number)

    def count_sent(self, size: int) -> None:
        """Count the bytes of an answer to a frame."""
        self.rate.spend(time.monotonic(), size / BYTES_PER_EVENT)
