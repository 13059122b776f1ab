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
    """Return the size of a stream in units: tokens of its prompt and prediction, records, log-probabilities in them,
    and entries of its logit bias.
    """
    request, stream = generation.request, generation.log
    return (
        MIN_STREAM_SIZE
        + len(request.prompt)
        + len(request.prediction)
        + len(request.sampling.logit_bias)
        + len(request.sampling.grammar or "") // CHARACTERS_PER_UNIT
        + len(stream.records)
        + stream.logprob_count
    )


@dataclass
class _Finished:
    """Finished streams of one tenant."""

    streams: OrderedDict[str, Generation] = field(default_factory=OrderedDict)  # the oldest first
    size: int = 0


@dataclass
class StreamRegistry:
    """Generations by the id of their log."""

    ttl: float = 300.0  # seconds for which a finished stream can be read again
    # Total `size` of finished streams; beyond it, those of the tenant with the most are evicted first. Without API keys
    # networks are tenants, which share one owner.
    max_size: int = 500_000
    epoch: str = field(default_factory=lambda: secrets.token_hex(3))  # identifies one run of this server
    awaited: set[str] = field(default_factory=set)  # ids of streams that are about to be restored
    has_predecessor: bool = False  # another process still has the store, with streams that are not known here
    on_evict: Callable[[str], None] = lambda _: None  # called with the id of a stream that can no longer be read
    _streams: dict[str, Generation] = field(default_factory=dict)
    _finished: OrderedDict[str, Generation] = field(default_factory=OrderedDict)  # the first that was finished first
    _tenants: dict[str, _Finished] = field(default_factory=dict)  # with finished streams
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
        if stream_id in self.awaited:
            raise CursorError(503, f"stream {stream_id[:80]!r} is being restored; retry in a few seconds")
        generation = self._streams.get(stream_id)
        if generation is None and self.has_predecessor:
            raise CursorError(503, f"stream {stream_id[:80]!r} may be one of the server before; retry in a few seconds")
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
        known = self._streams.get(stream_id)
        if position.epoch != (self.epoch if known is None else known.log.epoch):
            raise CursorError(410, f"event id {cursor[:80]!r} is from before a server restart; later events are lost")
        try:
            generation = self.get(stream_id, owner)
        except CursorError as error:
            if error.status == 503:
                raise
            raise CursorError(410, f"the stream of event id {cursor[:80]!r} has expired") from None
        if position.sequence_number > len(generation.log.records) and not generation.log.is_restored:
            raise CursorError(400, f"event id {cursor[:80]!r} is beyond the end of the stream")
        return generation, position.sequence_number

    def live(self) -> list[Generation]:
        """Return the generations that are still in progress."""
        return [generation for generation in self._streams.values() if not generation.log.is_closed]

    def finish(self, generation: Generation) -> None:
        """Start the time to live of a generation whose log is closed."""
        finished = self._tenants.setdefault(generation.request.tenant, _Finished())
        finished.streams[generation.log.id] = self._finished[generation.log.id] = generation
        finished.size += stream_size(generation)
        self._size += stream_size(generation)
        self.expire()

    def remove(self, generation: Generation) -> None:
        """Remove a finished generation before it expires."""
        name, stream_id = generation.request.tenant, generation.log.id
        finished = self._tenants.get(name)
        if finished is not None and stream_id in finished.streams:
            finished.streams.move_to_end(stream_id, last=False)
            self._evict(name, finished)

    def expire(self, now: Callable[[], float] = time.monotonic) -> None:
        """Evict finished streams that are too old. If the total size is too large, evict the oldest of the tenant
        with the largest size, but never the only stream. The cost is proportional to the evicted streams.
        """
        moment = now()
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if moment - (oldest.log.closed_at or moment) < self.ttl:
                break
            self.remove(oldest)
        while self._size > self.max_size:
            name, finished = max(self._tenants.items(), key=lambda item: item[1].size)
            if len(self._finished) == 1:
                return
            self._evict(name, finished)

    def _evict(self, name: str, finished: _Finished) -> None:
        stream_id, generation = finished.streams.popitem(last=False)
        log_request(log, logging.DEBUG, generation.request, "its stream can no longer be read")
        del self._streams[stream_id], self._finished[stream_id]
        self.on_evict(stream_id)
        finished.size -= stream_size(generation)
        self._size -= stream_size(generation)
        if not finished.streams:
            del self._tenants[name]

    def __len__(self) -> int:
        return len(self._streams)
