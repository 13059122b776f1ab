"""StreamLog: everything one request has said, kept so that any number of readers can follow, leave and come back.

Records are appended once and never change; a reader is a cursor. Live status (queue position, pauses) is not part of
the log: a reader that comes late wants to know how things stand, not how they stood. Knows nothing of protocols.

What is made for every token has `gc=False`: nothing in it leads back to it, so that no length of an answer makes the
garbage collector walk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.types import Alternative, StatusEvent


class Opened(msgspec.Struct, frozen=True):
    """A choice begins."""

    choice: int


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token with its log-probability, for those who asked."""

    token_id: int
    logprob: float
    top: tuple[Alternative, ...]
    offset: int  # characters of the choice before it, those of tokens without whole characters yet not counted


class Delta(msgspec.Struct, frozen=True, gc=False):
    """More text of one choice. `tokens` is how many tokens it took; `infos` is empty unless log-probabilities were
    asked for."""

    choice: int
    text: str
    tokens: int
    infos: tuple[TokenInfo, ...] = ()


class Finished(msgspec.Struct, frozen=True):
    """A choice is complete. `stop` is the stop string that ended it, if one did."""

    choice: int
    reason: str
    stop: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """The request failed: the last record."""

    message: str
    code: str
    param: str | None


class Usage(msgspec.Struct, frozen=True):
    """The request is complete: the last record. time_ms: what its wall time went to, by phase."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    time_ms: Mapping[str, float] = {}


Record = Opened | Delta | Finished | Failure | Usage


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """A record and its place in the log, counted from 1."""

    seq: int
    record: Record


Item = Numbered | StatusEvent


class Encoder(Protocol):
    """Puts records into the bytes of one protocol. Stateless: the same record gives the same bytes at every reading."""

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """What a reader is sent for `items`; possibly nothing."""
        ...


class StreamLog:
    """Append-only log of one request. It has one writer and any number of readers, all on one event loop."""

    __slots__ = (
        "closed_at",
        "created",
        "cursor_start",
        "details",
        "epoch",
        "followers",
        "id",
        "owner",
        "readers",
        "records",
        "status",
    )

    def __init__(self, stream_id: str, epoch: str, owner: str) -> None:
        self.id = stream_id
        self.epoch = epoch
        self.owner = owner
        self.cursor_start = f"{stream_id}.{epoch}".encode()  # of every `Cursor` into this log
        self.created = time.time()  # deliberately the wall clock: it is shown to clients
        self.records: list[Record] = []
        self.details = 0  # log-probabilities in them
        self.status: StatusEvent | None = None
        self.closed_at: float | None = None
        self.readers = 0
        self.followers: tuple[Callable[[], None], ...] = ()  # called by `announce`, oldest first; they raise nothing

    @property
    def is_closed(self) -> bool:
        """True when the last record is written."""
        return self.closed_at is not None

    def append(self, record: Record) -> None:
        """Write one record; `Usage` and `Failure` close the log. Readers hear of it with the next `announce`."""
        assert not self.is_closed, f"stream {self.id} is closed"
        self.records.append(record)
        if isinstance(record, Delta):
            if record.infos:
                self.details += sum(1 + len(info.top) for info in record.infos)
        elif isinstance(record, (Usage, Failure)):
            self.closed_at = time.monotonic()

    def announce(self) -> None:
        """Tell the followers of what was appended, or of a new `status`."""
        for follower in self.followers:
            follower()

    def follow(self, follower: Callable[[], None]) -> None:
        """Have `follower` called by each `announce` from now on."""
        self.followers += (follower,)

    def unfollow(self, follower: Callable[[], None]) -> None:
        """No more; nothing, where it is not."""
        self.followers = tuple(other for other in self.followers if other is not follower)

    async def closed(self) -> None:
        """Wait, as one who reads it, until the last record is written."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if self.is_closed and not ended.done():
                ended.set_result(None)

        self.follow(look)
        try:
            with Reader(self, 0):
                look()
                await ended
        finally:
            self.unfollow(look)


class Reader:
    """A place in a log, for one reader; a context manager, so that the log knows who reads it."""

    __slots__ = ("_after", "_log", "_told")

    def __init__(self, log: StreamLog, after: int) -> None:
        self._log = log
        self._after = after
        self._told: StatusEvent | None = None

    def __enter__(self) -> Reader:
        self._log.readers += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._log.readers -= 1

    @property
    def is_done(self) -> bool:
        """True when there will be no more."""
        return self._log.is_closed and self._after == len(self._log.records)

    def take(self) -> list[Item]:
        """What is new since the last call; of statuses the newest, and none of a finished request."""
        log, after = self._log, self._after
        items: list[Item] = []
        if log.status is not self._told:
            self._told = log.status
            if log.status is not None and not log.is_closed:
                items.append(log.status)
        self._after = len(log.records)
        items += [Numbered(seq, record) for seq, record in enumerate(log.records[after:], after + 1)]
        return items


class CursorRefused(Exception):
    """A resume position that cannot be served. `status` is the HTTP meaning: 400 nonsense, 404 unknown, 410 lost."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Cursor:
    """`<stream>.<epoch>.<seq>`: a place in a log, as event ids name it."""

    stream: str
    epoch: str
    seq: int

    def __str__(self) -> str:
        return f"{self.stream}.{self.epoch}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises `CursorRefused` (400) for anything that no server of ours wrote."""
        stream, _, rest = text.partition(".")
        epoch, _, seq = rest.partition(".")
        if not (stream and epoch and seq.isascii() and seq.isdigit() and len(seq) <= 12):
            raise CursorRefused(400, f"{text[:80]!r} is not an event id of this server")
        return cls(stream, epoch, int(seq))
