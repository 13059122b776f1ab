"""StreamLog: the output of one request, kept so that any number of readers can follow, disconnect and resume.

Records are appended once and never change; a reader is a cursor. Live status (queue position, preemptions) is not part
of the log, because a late reader needs only the current status. Independent of protocols.

Objects that are created for every token have `gc=False`: they are in no reference cycles, so the garbage collector need
not scan them however long an answer is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import msgspec

from app.streams.wire_format import WireFormat
from engine.types import Alternative, StatusEvent


class ChoiceStarted(msgspec.Struct, frozen=True):
    """Beginning of a choice."""

    choice: int


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """Token with its log-probability, if requested."""

    token_id: int
    logprob: float | None  # None: the first token of a prompt
    top: tuple[Alternative, ...]
    offset: int  # characters of the choice before it, excluding tokens without whole characters so far


class ToolCallPiece(msgspec.Struct, frozen=True, gc=False):
    """Piece of tool call `index` of a choice. Its first piece has the id and the name of the tool, later ones only more
    `arguments`, which together are the text of a JSON object unless the answer was cut.
    """

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Output of one choice: first `reasoning`, then the content `text`, then tool calls. `tokens` is the number of its
    tokens; `infos` is empty unless log-probabilities were requested.
    """

    choice: int
    text: str
    tokens: int
    infos: tuple[TokenInfo, ...] = ()
    reasoning: str = ""
    calls: tuple[ToolCallPiece, ...] = ()


class PromptInfos(msgspec.Struct, frozen=True):
    """Tokens of the prompt with their log-probabilities, if requested apart from the text."""

    choice: int
    infos: tuple[TokenInfo, ...]


class ChoiceFinished(msgspec.Struct, frozen=True):
    """End of a choice. reason: stop, tool_calls, length, abort or steered. stop: the stop string that ended it, if
    any.
    """

    choice: int
    reason: str
    stop: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """Failure of the request; the last record."""

    message: str
    code: str
    param: str | None


class PredictionTokens(msgspec.Struct, frozen=True):
    """Tokens of a prediction that were tried: those that became tokens of the answer, and the others."""

    accepted: int
    rejected: int


class Usage(msgspec.Struct, frozen=True):
    """End of the request; the last record. time_ms: wall time by phase."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    time_ms: Mapping[str, float] = {}
    reasoning_tokens: int = 0  # of the completion tokens
    prediction: PredictionTokens | None = None  # None: the request has no prediction


Record = ChoiceStarted | PromptInfos | Delta | ChoiceFinished | Failure | Usage


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """Record with its number in the log, counted from 1."""

    seq: int
    record: Record


Item = LogEntry | StatusEvent


class Encoder(Protocol):
    """Encoder of records in one protocol, with the state of one reader. A record gives the same bytes whenever it is
    read.
    """

    @property
    def wire(self) -> WireFormat:
        """Return the format of the protocol."""
        ...

    def opening(self, log: StreamLog) -> bytes:
        """Return the bytes before those of the first record; possibly empty."""
        ...

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """Return the bytes for `items`; possibly empty."""
        ...

    def for_reader(self, *, resumes: bool) -> Self:
        """Return an encoder for another reader. resumes: with ids and status, which some clients cannot parse."""
        ...

    def body(self, log: StreamLog, n: int) -> dict[str, Any]:
        """Return the body of an answer with `n` choices that is not streamed. Raises `ApiError` if it failed."""
        ...


class StreamLog:
    """Append-only log of one request. It has one writer and any number of readers, all on one event loop."""

    __slots__ = (
        "closed_at",
        "created",
        "cursor_start",
        "epoch",
        "id",
        "is_restored",
        "listeners",
        "logprob_count",
        "opened_at",
        "owner",
        "readers",
        "records",
        "status",
    )

    def __init__(self, stream_id: str, epoch: str, owner: str) -> None:
        self.id = stream_id
        self.epoch = epoch
        self.owner = owner
        self.cursor_start = f"{stream_id}.{epoch}".encode()  # prefix of every `Cursor` into this log
        self.created = time.time()  # wall clock, because it is shown to clients
        self.opened_at = time.monotonic()
        self.records: list[Record] = []
        self.logprob_count = 0  # number of log-probabilities in the records
        self.status: StatusEvent | None = None
        self.is_restored = False  # by a process that replaced another: a reader may have read more than there is
        self.closed_at: float | None = None
        self.readers = 0
        self.listeners: tuple[Callable[[], None], ...] = ()  # called by `notify`, oldest first; they raise nothing

    @property
    def is_closed(self) -> bool:
        """Return whether the last record is written."""
        return self.closed_at is not None

    @property
    def completed(self) -> float | None:
        """Return the time of the last record on the clock of `created`; None until it is written."""
        return None if self.closed_at is None else self.created + self.closed_at - self.opened_at

    def append(self, record: Record) -> None:
        """Write one record; `Usage` and `Failure` close the log. Readers are notified by the next `notify`."""
        assert not self.is_closed, f"stream {self.id} is closed"
        self.records.append(record)
        if isinstance(record, (Delta, PromptInfos)):
            if record.infos:
                self.logprob_count += sum(1 + len(info.top) for info in record.infos)
        elif isinstance(record, (Usage, Failure)):
            self.closed_at = time.monotonic()

    def cursor_at(self, seq: int) -> bytes:
        """Return the `Cursor` of a reader that has read the records up to `seq`, as it is sent."""
        return b"%s.%d" % (self.cursor_start, seq)

    def notify(self) -> None:
        """Notify followers of appended records or a new `status`."""
        for follower in self.listeners:
            follower()

    def follow(self, follower: Callable[[], None]) -> None:
        """Call `follower` at each `notify` from now on."""
        self.listeners += (follower,)

    def unfollow(self, follower: Callable[[], None]) -> None:
        """Stop calling `follower`; does nothing if it is not registered."""
        self.listeners = tuple(other for other in self.listeners if other is not follower)

    async def closed(self) -> None:
        """Wait, as a reader, until the last record is written."""
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def check() -> None:
            if self.is_closed and not closed.done():
                closed.set_result(None)

        self.follow(check)
        try:
            with Reader(self, 0):
                check()
                await closed
        finally:
            self.unfollow(check)


class Reader:
    """Position of one reader in a log. A context manager, so that the log counts its readers."""

    __slots__ = ("_after", "_last_status", "_log")

    def __init__(self, log: StreamLog, after: int) -> None:
        self._log = log
        self._after = after
        self._last_status: StatusEvent | None = None

    def __enter__(self) -> Reader:
        self._log.readers += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._log.readers -= 1

    @property
    def is_done(self) -> bool:
        """Return whether no further items will follow."""
        return self._log.is_closed and self._after >= len(self._log.records)

    @property
    def is_behind(self) -> bool:
        """Return whether records are left to read."""
        return self._after < len(self._log.records)

    def read(self, limit: int | None = None) -> list[Item]:
        """Return the new items since the last call; only the newest status, and none after the end of the request.

        The status follows the records, as it is that of the request after them. limit: maximum number of records.
        """
        log, after = self._log, self._after
        end = len(log.records) if limit is None else min(len(log.records), after + limit)
        records = log.records[after:end]
        self._after = max(after, end)  # the log is shorter while a restored answer is computed again
        items: list[Item] = [LogEntry(seq, record) for seq, record in enumerate(records, after + 1)]
        if log.status is not self._last_status and not self.is_behind:
            self._last_status = log.status
            if log.status is not None and not log.is_closed:
                items.append(log.status)
        return items


class CursorError(Exception):
    """A resume position cannot be served. `status` is the HTTP status: 400 malformed, 404 unknown, 410 lost."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in a log, as in event ids: `<stream>.<epoch>.<seq>`."""

    stream: str
    epoch: str
    sequence_number: int

    def __str__(self) -> str:
        return f"{self.stream}.{self.epoch}.{self.sequence_number}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse an event id. Raises `CursorError` (400) for a text that no server has written."""
        stream, _, rest = text.partition(".")
        epoch, _, seq = rest.partition(".")
        if not (stream and epoch and seq.isascii() and seq.isdigit() and len(seq) <= 12):
            raise CursorError(400, f"{text[:80]!r} is not an event id of this server")
        return cls(stream, epoch, int(seq))
