"""ChannelClock: translation of moments between the clocks of this process and of an engine. Pure; reads no clock.

The types make an untranslated crossing an error for mypy: only `ChannelClock` makes a `ReceivedEvent`, which requests
in flight accept, and an `EngineRequest`, which a `Submit` message requires.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from engine.clock import EngineTime
from engine.ipc import EngineRequest
from engine.types import EndEvent, Event, PromptEvent, Request, StatusEvent, TokenEvent

# Age of a measured offset from which it is dropped, once there is a newer one. Clocks of two machines drift apart by
# up to 0.1 ms/s, so an older one is wrong by more than the delay of a frame.
MAX_OFFSET_AGE_SECONDS = 60.0

if TYPE_CHECKING:  # written out, because mypy 2.4 fails on a NewType of a struct

    class ReceivedStatus(StatusEvent, frozen=True):
        """Status event with its moment on this process's clock. It is a plain `StatusEvent` at runtime."""

else:
    ReceivedStatus = StatusEvent

ReceivedEvent = TokenEvent | EndEvent | PromptEvent | ReceivedStatus


class ChannelClock:
    """Offset between the clocks of the two ends of one channel.

    A frame that carries the engine's time arrives later by an unknown delay, so that each one gives an upper bound of
    the offset. The least of them belongs to the frame with the least delay (Cristian, 1989). Translated moments of
    events are never after their arrival.
    """

    def __init__(self, *, is_shared: bool) -> None:
        """is_shared: both ends have the same clock, as on one machine: the offset is 0, and nothing is translated."""
        self._is_shared = is_shared
        self._began = 0.0  # of the current window, on this process's clock
        self._least = self._previous_least = math.inf  # offsets in the current window and in the one before

    @property
    def offset(self) -> float:
        """Return this process's time minus the engine's, in seconds. There was a frame with a time before."""
        if self._is_shared:
            return 0.0
        assert self._least < math.inf, "an engine's time is needed before the first translation"
        return min(self._least, self._previous_least)

    def observe(self, sent: EngineTime, received: float) -> None:
        """Note the engine's time in a frame, and the time of its arrival on this process's clock."""
        if self._is_shared:
            return
        window = MAX_OFFSET_AGE_SECONDS / 2
        if received - self._began >= window:
            is_recent = received - self._began < MAX_OFFSET_AGE_SECONDS
            self._previous_least = self._least if is_recent else math.inf
            self._began, self._least = received, math.inf
        self._least = min(self._least, received - sent)

    def from_engine(self, events: tuple[Event, ...]) -> tuple[ReceivedEvent, ...]:
        """Return events with their moments on this process's clock. Those without a moment are not touched."""
        if self._is_shared:
            return cast(tuple[ReceivedEvent, ...], events)
        return tuple(self._received(event) if isinstance(event, StatusEvent) else event for event in events)

    def to_engine(self, request: Request) -> EngineRequest:
        """Return a request with its moments on the engine's clock."""
        if self._is_shared or (request.deadline is None and request.waiting_since is None):
            return cast(EngineRequest, request)
        deadline, waiting_since = request.deadline, request.waiting_since
        translated = replace(
            request,
            deadline=None if deadline is None else deadline - self.offset,
            waiting_since=None if waiting_since is None else waiting_since - self.offset,
        )
        return cast(EngineRequest, translated)

    def _received(self, event: StatusEvent) -> ReceivedStatus:
        translated = replace(event, monotonic_time=event.monotonic_time + self.offset)
        return cast(ReceivedStatus, translated)
