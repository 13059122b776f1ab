"""Which streams can be read: live ones, and finished ones until they expire."""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from app.generation import Generation
from app.streams import Cursor, CursorRefused
from engine.request_logging import log_request

log = logging.getLogger("carousel.registry")

EACH = 50  # units that any stream counts for, whatever was said in it; a unit is about 150 bytes


def size(generation: Generation) -> int:
    """What keeping it takes, in such units: tokens of its prompt, records, and log-probabilities in them; and the
    entries of its logit bias."""
    request, stream = generation.request, generation.log
    return EACH + len(request.prompt) + len(request.sampling.logit_bias) + len(stream.records) + stream.details


@dataclass
class _Owner:
    """What is kept of one owner's."""

    streams: OrderedDict[str, Generation] = field(default_factory=OrderedDict)  # finished, the oldest first
    size: int = 0


@dataclass
class StreamRegistry:
    """Generations by the id of their log."""

    ttl: float = 300.0  # seconds a finished stream can be read again
    max_size: int = 500_000  # of all finished streams, as `size` counts; who keeps most lets go first
    epoch: str = field(default_factory=lambda: secrets.token_hex(3))  # one life of this server
    _streams: dict[str, Generation] = field(default_factory=dict)
    _owners: dict[str, _Owner] = field(default_factory=dict)  # of finished streams
    _size: int = 0

    def add(self, generation: Generation) -> None:
        """From now on it can be found by its log's id."""
        self._streams[generation.log.id] = generation

    def peek(self, stream_id: str) -> Generation | None:
        """Return a generation for the server's own log, without regard to its owner."""
        return self._streams.get(stream_id)

    def get(self, stream_id: str, owner: str) -> Generation:
        """Raises `CursorRefused` (404) when there is none, or when it is somebody else's: the two look alike."""
        self.expire()
        generation = self._streams.get(stream_id)
        if generation is None or generation.log.owner != owner:
            raise CursorRefused(404, f"no stream {stream_id[:80]!r}")
        return generation

    def find(self, stream_id: str, owner: str, cursor: str | None) -> tuple[Generation, int]:
        """A stream and the record behind which to go on. Raises `CursorRefused`: a restart is told apart from a stream
        that never was, and one that is kept no longer, as far as the cursor knows."""
        if cursor is None:
            return self.get(stream_id, owner), 0
        place = Cursor.parse(cursor)
        if place.stream != stream_id:
            raise CursorRefused(400, f"event id {cursor[:80]!r} belongs to another stream than {stream_id[:80]!r}")
        if place.epoch != self.epoch:
            raise CursorRefused(410, f"event id {cursor[:80]!r} is from before a restart; what followed it is lost")
        try:
            generation = self.get(stream_id, owner)
        except CursorRefused:
            raise CursorRefused(410, f"the stream of event id {cursor[:80]!r} is not kept any more") from None
        if place.seq > len(generation.log.records):
            raise CursorRefused(400, f"event id {cursor[:80]!r} lies ahead of the stream")
        return generation, place.seq

    def live(self) -> list[Generation]:
        """Those that are still being answered."""
        return [generation for generation in self._streams.values() if not generation.log.is_closed]

    def finish(self, generation: Generation) -> None:
        """Its log is closed: from now on its time to live runs."""
        owner = self._owners.setdefault(generation.log.owner, _Owner())
        owner.streams[generation.log.id] = generation
        owner.size += size(generation)
        self._size += size(generation)
        self.expire()

    def expire(self, now: Callable[[], float] = time.monotonic) -> None:
        """Forget finished streams that are too old; and where all together are too much, those of the owner who keeps
        most, but for the last one. The oldest first, so it costs what it forgets."""
        moment = now()
        for name, owner in list(self._owners.items()):
            while owner.streams and moment - (_oldest(owner).log.closed_at or moment) >= self.ttl:
                self._forget(name, owner)
        while self._size > self.max_size:
            name, owner = max(self._owners.items(), key=lambda item: item[1].size)
            if len(owner.streams) == 1:
                return
            self._forget(name, owner)

    def _forget(self, name: str, owner: _Owner) -> None:
        stream_id, generation = owner.streams.popitem(last=False)
        log_request(log, logging.DEBUG, generation.request, "its stream is forgotten and cannot be read any more")
        del self._streams[stream_id]
        owner.size -= size(generation)
        self._size -= size(generation)
        if not owner.streams:
            del self._owners[name]

    def __len__(self) -> int:
        return len(self._streams)


def _oldest(owner: _Owner) -> Generation:
    return next(iter(owner.streams.values()))
