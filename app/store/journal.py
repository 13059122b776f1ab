"""Journal: resumable requests and their tokens in the store, from which a server continues that replaces a killed one.

A request is written when it is queued, with the body that its client sent and the token ids of its prompt. Its output
is token ids only: records come from them again, through the same detokenizer and parsers, and have the same numbers.
Tokens of the last moments may be missing; they are computed again and are the same, as texts depend on seeds alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from app.store.entries import Changed, Ended, Entry, Saved, Token
from app.store.writer import Write, Writer
from app.streams.stream_log import Failure, StreamLog, Usage
from engine.types import Event, FinishReason, Request, TokenEvent

Sink = Callable[[Event], None]

PIECE_TOKENS = 64  # in a row of the table
PIECE_SECONDS = 1.0  # after which tokens are written in any case
HOLD_SECONDS = 0.02  # for which tokens that are written before they are sent wait for further ones
MAX_STARTS = 3  # processes that may take a request up: it may be the reason for their ends

INSERT = "INSERT OR REPLACE INTO request (id, owner, created, entry) VALUES (?, ?, ?, ?)"
TOKENS = "INSERT OR REPLACE INTO tokens (id, start, ids, choices, finish) VALUES (?, ?, ?, ?, ?)"
END = "UPDATE request SET end = ?, ended = ?, starts = 0 WHERE id = ?"
DELETE = "DELETE FROM request WHERE id = ?", "DELETE FROM tokens WHERE id = ?"
CHANGE = "UPDATE request SET change = ? WHERE id = ?"
COUNT_START = "UPDATE request SET starts = starts + 1 WHERE id = ?"


class Recorder:
    """Writer of one request's tokens. Called with each event of the engine, which it passes on."""

    def __init__(self, journal: Journal, entry: Entry, written: int, sink: Sink, *, writes_first: bool) -> None:
        """written: number of tokens that the store has already. writes_first: an event is passed on when its tokens
        are written, as they might not be the same when they are computed again.
        """
        self._journal = journal
        self._id = entry.request.id
        self._written = written
        self._sink = sink
        self._writes_first = writes_first
        self._is_silent = entry.has_logprobs
        self._ids = array("I")
        self._choices = bytearray()
        self._held: list[Event] = []  # after the last flush
        self._batches: deque[list[Event]] = deque()  # whose tokens are being written

    def __call__(self, event: Event) -> None:
        if self._is_silent or not isinstance(event, TokenEvent):
            self._pass_on(event)
            return
        self._ids.append(event.token_id)
        self._choices.append(event.choice)
        if self._writes_first:
            self._held.append(event)
        if event.finish is not None or len(self._ids) >= PIECE_TOKENS:
            self.flush(event.finish)
        else:
            self._journal.flush_later(self, HOLD_SECONDS if self._writes_first else PIECE_SECONDS)
        if not self._writes_first:
            self._sink(event)

    def write(self, tokens: Iterable[Token]) -> None:
        """Write tokens that were passed on by another process."""
        for token in tokens:
            self._ids.append(token.id)
            self._choices.append(token.choice)
            if token.finish is not None:
                self.flush(token.finish)
        self.flush()

    def flush(self, finish: FinishReason | None = None) -> None:
        """Write the tokens so far. finish: reason, if the last one ended its choice."""
        if not self._ids:
            return
        ids, choices, held = self._ids, self._choices, self._held
        self._ids, self._choices, self._held = array("I"), bytearray(), []
        values = (self._id, self._written, _to_bytes(ids), bytes(choices) if any(choices) else b"", finish)
        self._written += len(ids)
        if held:
            self._batches.append(held)
        self._journal.write(Write(TOKENS, values), self._on_written if held else None)

    def _pass_on(self, event: Event) -> None:
        """Pass an event on, after those that are held."""
        if self._held or self._batches:
            self._held.append(event)
        else:
            self._sink(event)

    def _on_written(self) -> None:
        """Pass on the events whose tokens are written, and those after them that have none."""
        for event in self._batches.popleft():
            self._sink(event)
        if not (self._batches or self._ids):
            held, self._held = self._held, []
            for event in held:
                self._sink(event)


class Journal:
    """Resumable requests of a server. All methods but `read` are for the event loop and never wait for the disk."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._recorders: dict[Recorder, asyncio.TimerHandle] = {}  # with tokens that are not written
        self._kept: dict[str, Recorder] = {}  # of requests in the store, by id

    def read(self) -> list[Saved]:
        """Return all requests, the oldest first, before the writer starts. Wrong rows are left out and removed."""
        connection = self._writer.connection
        found: list[Saved] = []
        rows = connection.execute("SELECT id, entry, change, end, starts FROM request")
        for stream_id, entry, change, end, starts in rows:
            try:
                decoded = msgspec.msgpack.decode(entry, type=Entry)
                if change is not None:
                    decoded = msgspec.msgpack.decode(change, type=Changed).apply_to(decoded)
                ended = None if end is None else msgspec.msgpack.decode(end, type=Ended)
            except msgspec.DecodeError:
                self._delete(stream_id)
                continue
            tokens = connection.execute(
                "SELECT start, ids, choices, finish FROM tokens WHERE id = ? ORDER BY start", (stream_id,)
            )
            found.append(Saved(decoded, ended, starts, _tokens(tokens)))
        connection.execute("DELETE FROM tokens WHERE id NOT IN (SELECT id FROM request)")
        connection.commit()
        return sorted(found, key=lambda saved: saved.entry.note.created)

    def begin(self, entry: Entry, sink: Sink, *, is_exact: bool) -> Sink:
        """Write a request that is about to be queued. Returns the function for its events, which passes them to `sink`.

        is_exact: tokens that are computed again are the same.
        """
        if entry.has_logprobs and _writes_first(entry, is_exact=is_exact):
            return sink
        values = entry.request.id, entry.note.owner, entry.note.created, msgspec.msgpack.encode(entry)
        self.write(Write(INSERT, values))
        return self._recorder(entry, 0, sink, is_exact=is_exact)

    def adopt(self, saved: Saved, sink: Sink, *, is_exact: bool) -> Sink:
        """Do as `begin` for a request of another process, with its tokens so far."""
        recorder = self.begin(saved.entry, sink, is_exact=is_exact)
        if isinstance(recorder, Recorder):
            recorder.write(saved.tokens)
        return recorder

    def take_up(self, saved: Saved, sink: Sink, *, is_exact: bool) -> Sink:
        """Do as `begin` for a request that this process continues, and count the start."""
        self.write(Write(COUNT_START, (saved.entry.request.id,)))
        return self._recorder(saved.entry, len(saved.tokens), sink, is_exact=is_exact)

    def keep(self, saved: Saved) -> None:
        """Keep a request that has ended."""
        self._recorder(saved.entry, len(saved.tokens), lambda event: None, is_exact=True)

    async def settle(self) -> None:
        """Wait until the requests so far are written, but not for a disk that does not respond."""
        await self._writer.settle()

    def change(self, request: Request) -> None:
        """Write the state of a request that its client has changed, if it is in the store."""
        if request.id in self._kept:
            changed = Changed(request.is_paused, request.service_class)
            self.write(Write(CHANGE, (msgspec.msgpack.encode(changed), request.id)))

    def end(self, log: StreamLog) -> None:
        """Write the end of a request, if it is in the store."""
        if (recorder := self._kept.get(log.id)) is None:
            return
        recorder.flush()
        last = log.records[-1]
        ended = Ended(
            time.time(), last if isinstance(last, Usage) else None, last if isinstance(last, Failure) else None
        )
        self.write(Write(END, (msgspec.msgpack.encode(ended), ended.at, log.id)))

    def forget(self, stream_id: str) -> None:
        """Remove a request that can no longer be read."""
        if self._kept.pop(stream_id, None) is not None:
            self._delete(stream_id)

    def has(self, stream_id: str) -> bool:
        """Return whether a request is in the store."""
        return stream_id in self._kept

    def write(self, write: Write, on_written: Callable[[], None] | None = None) -> None:
        """Queue a change. on_written: called on the event loop when it is written, or at once if it cannot be."""
        if on_written is None:
            self._writer.put(write)
        else:
            loop = asyncio.get_running_loop()
            self._writer.put(write, lambda: loop.call_soon_threadsafe(on_written))

    def flush_later(self, recorder: Recorder, seconds: float) -> None:
        """Write the tokens of a recorder within some seconds."""
        if recorder not in self._recorders:
            self._recorders[recorder] = asyncio.get_running_loop().call_later(seconds, self._flush, recorder)

    def flush(self) -> None:
        """Queue the tokens so far of all requests."""
        for recorder in list(self._recorders):
            recorder.flush()

    def _recorder(self, entry: Entry, written: int, sink: Sink, *, is_exact: bool) -> Recorder:
        writes_first = _writes_first(entry, is_exact=is_exact)
        recorder = self._kept[entry.request.id] = Recorder(self, entry, written, sink, writes_first=writes_first)
        return recorder

    def _delete(self, stream_id: str) -> None:
        for statement in DELETE:
            self.write(Write(statement, (stream_id,)))

    def _flush(self, recorder: Recorder) -> None:
        del self._recorders[recorder]
        recorder.flush()


def _writes_first(entry: Entry, *, is_exact: bool) -> bool:
    """Return whether tokens are written before they are sent. Choices computed again take turns differently."""
    return not is_exact or entry.request.n > 1


def _tokens(rows: Iterable[tuple[int, bytes, bytes, str | None]]) -> list[Token]:
    """Return the tokens of rows in order, up to the first gap: those after it were written while others were lost."""
    tokens: list[Token] = []
    for start, data, choices, finish in rows:
        if start != len(tokens):
            break
        ids = _from_bytes(data)
        tokens += [Token(choice, token, None) for choice, token in zip(choices or bytes(len(ids)), ids, strict=True)]
        if finish is not None:
            tokens[-1] = tokens[-1]._replace(finish=FinishReason(finish))
    return tokens


def _to_bytes(tokens: array[int]) -> bytes:
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def _from_bytes(data: bytes) -> array[int]:
    tokens = array("I")
    tokens.frombytes(data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
