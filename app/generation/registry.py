"""Registry of readable streams: live ones, and finished ones until they expire."""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from app.generation.generation import Generation
from app.streams.stream_log import Cursor, CursorError
from engine.request_logging import log_request

log = logging.getLogger("carousel.registry")

CHARACTERS_PER_UNIT = 150  # of a grammar
MIN_STREAM_SIZE = 50  # minimum size of a stream; a unit is about 150 bytes


def stream_size(generation: Generation) -> int:
    """Return the size of a stream in units: tokens of its prompt, records, log-probabilities in them, and entries of
    its logit bias.
    """
    request, stream = generation.request, generation.log
    return (
        MIN_STREAM_SIZE
        + len(request.prompt)
        + len(request.sampling.logit_bias)
        + len(request.sampling.grammar or "") // CHARACTERS_PER_UNIT
        + len(stream.records)
        + stream.logprob_count
    )


@dataclass
class _Owner:
    """Finished streams of one owner."""

    streams: OrderedDict[str, Generation] = field(default_factory=OrderedDict)  # the oldest first
    size: int = 0


@dataclass
class StreamRegistry:
    """Generations by the id of their log."""

    ttl: float = 300.0  # seconds for which a finished stream can be read again
    # total `size` of finished streams; beyond it, the owner with the most is evicted from first
    max_size: int = 500_000
    epoch: str = field(default_factory=lambda: secrets.token_hex(3))  # identifies one run of this server
    _streams: dict[str, Generation] = field(default_factory=dict)
    _owners: dict[str, _Owner] = field(default_factory=dict)  # with finished streams
    _size: int = 0

    def add(self, generation: Generation) -> None:
        """Register a generation under its log's id."""
        self._streams[generation.log.id] = generation

    def get_any_owner(self, stream_id: str) -> Generation | None:
        """Return a generation regardless of its owner, for the server's own log."""
        return self._streams.get(stream_id)

    def get(self, stream_id: str, owner: str) -> Generation:
        """Return a stream. Raises `CursorError` (404) if it is missing or has another owner, without distinction."""
        self.expire()
        generation = self._streams.get(stream_id)
        if generation is None or generation.log.owner != owner:
            raise CursorError(404, f"no stream {stream_id[:80]!r}")
        return generation

    def resume(self, stream_id: str, owner: str, cursor: str | None) -> tuple[Generation, int]:
        """Return a stream and the number of the record after which to resume. Raises `CursorError`, with different
        messages for an unknown stream, one from before a restart, and one that has expired, as far as the cursor shows.
        """
        if cursor is None:
            return self.get(stream_id, owner), 0
        position = Cursor.parse(cursor)
        if position.stream != stream_id:
            raise CursorError(400, f"event id {cursor[:80]!r} belongs to another stream than {stream_id[:80]!r}")
        if position.epoch != self.epoch:
            raise CursorError(410, f"event id {cursor[:80]!r} is from before a server restart; later events are lost")
        try:
            generation = self.get(stream_id, owner)
        except CursorError:
            raise CursorError(410, f"the stream of event id {cursor[:80]!r} has expired") from None
        if position.sequence_number > len(generation.log.records):
            raise CursorError(400, f"event id {cursor[:80]!r} is beyond the end of the stream")
        return generation, position.sequence_number

    def live(self) -> list[Generation]:
        """Return the generations that are still in progress."""
        return [generation for generation in self._streams.values() if not generation.log.is_closed]

    def finish(self, generation: Generation) -> None:
        """Start the time to live of a generation whose log is closed."""
        owner = self._owners.setdefault(generation.log.owner, _Owner())
        owner.streams[generation.log.id] = generation
        owner.size += stream_size(generation)
        self._size += stream_size(generation)
        self.expire()

    def remove(self, generation: Generation) -> None:
        """Remove a finished generation before it expires."""
        name, stream_id = generation.log.owner, generation.log.id
        owner = self._owners.get(name)
        if owner is not None and stream_id in owner.streams:
            owner.streams.move_to_end(stream_id, last=False)
            self._evict(name, owner)

    def expire(self, now: Callable[[], float] = time.monotonic) -> None:
        """Evict finished streams that are too old. If the total size is too large, evict the oldest of the owner with
        the largest size, except for its last one. The cost is proportional to the evicted streams.
        """
        moment = now()
        for name, owner in list(self._owners.items()):
            while owner.streams and moment - (_oldest(owner).log.closed_at or moment) >= self.ttl:
                self._evict(name, owner)
        while self._size > self.max_size:
            name, owner = max(self._owners.items(), key=lambda item: item[1].size)
            if len(owner.streams) == 1:
                return
            self._evict(name, owner)

    def _evict(self, name: str, owner: _Owner) -> None:
        stream_id, generation = owner.streams.popitem(last=False)
        log_request(log, logging.DEBUG, generation.request, "its stream can no longer be read")
        del self._streams[stream_id]
        owner.size -= stream_size(generation)
        self._size -= stream_size(generation)
        if not owner.streams:
            del self._owners[name]

    def __len__(self) -> int:
        return len(self._streams)


def _oldest(owner: _Owner) -> Generation:
    return next(iter(owner.streams.values()))
