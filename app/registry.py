"""Which streams can be read: live ones, and finished ones until they expire."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from app.generation import Generation
from app.streams import Cursor, CursorRefused


@dataclass
class StreamRegistry:
    """Generations by the id of their log."""

    ttl: float = 300.0  # seconds a finished stream can be read again
    max_finished: int = 1000
    epoch: str = field(default_factory=lambda: secrets.token_hex(3))  # one life of this server
    _streams: dict[str, Generation] = field(default_factory=dict)
    _finished: OrderedDict[str, Generation] = field(default_factory=OrderedDict)

    def add(self, generation: Generation) -> None:
        """From now on it can be found by its log's id."""
        self._streams[generation.log.id] = generation

    def get(self, stream_id: str, owner: str) -> Generation:
        """Raises `CursorRefused` (404) when there is none, or when it is somebody else's: the two look alike."""
        self.expire()
        generation = self._streams.get(stream_id)
        if generation is None or generation.log.owner != owner:
            raise CursorRefused(404, f"no stream {stream_id[:80]!r}")
        return generation

    def find(self, stream_id: str, owner: str, cursor: str | None) -> tuple[Generation, int]:
        """A stream and the record behind which to go on. Raises `CursorRefused`: a restart is told apart from a stream
        that never was, as far as the cursor knows."""
        if cursor is None:
            return self.get(stream_id, owner), 0
        place = Cursor.parse(cursor)
        if place.stream != stream_id:
            raise CursorRefused(400, f"event id {cursor[:80]!r} belongs to another stream than {stream_id[:80]!r}")
        if place.epoch != self.epoch:
            raise CursorRefused(410, f"event id {cursor[:80]!r} is from before a restart; what followed it is lost")
        generation = self.get(stream_id, owner)
        if place.seq > len(generation.log.records):
            raise CursorRefused(400, f"event id {cursor[:80]!r} lies ahead of the stream")
        return generation, place.seq

    def live(self) -> list[Generation]:
        """Those that are still being answered."""
        return [generation for generation in self._streams.values() if not generation.log.is_closed]

    def finish(self, generation: Generation) -> None:
        """Its log is closed: from now on its time to live runs."""
        self._finished[generation.log.id] = generation
        self.expire()

    def expire(self, now: Callable[[], float] = time.monotonic) -> None:
        """Forget finished streams that are too old or too many. Oldest first, so it costs what it forgets."""
        while self._finished:
            stream_id, oldest = next(iter(self._finished.items()))
            closed_at = oldest.log.closed_at
            assert closed_at is not None
            if len(self._finished) <= self.max_finished and now() - closed_at < self.ttl:
                return
            del self._finished[stream_id]
            del self._streams[stream_id]

    def __len__(self) -> int:
        return len(self._streams)
