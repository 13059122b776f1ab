"""Encoder of the logs of `/v1/responses`: server-sent events, and whole responses."""

from __future__ import annotations

import asyncio
import copy
import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Self

from app.errors import ApiError
from app.http.sse import EventFormat
from app.protocols.answers import failure_error
from app.protocols.responses_output import Event, ResponseHead, ResponseOutput
from app.streams.stream_log import Failure, Item, LogEntry, StreamLog

RESPONSES = EventFormat("/v1/responses")
CHECKPOINT_RECORDS = 2048  # records between two checkpoints; adding so many without events takes about 1 ms


class ResponsesEncoder:
    """Encoder of one response for one reader.

    Events have no ids, because OpenAI's library takes a comment after an id for an empty event; their numbers serve to
    resume. Copies for other readers share checkpoints: outputs as of every `CHECKPOINT_RECORDS` records, from which a
    reader that resumes continues.
    """

    wire = RESPONSES

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._checkpoints: list[ResponseOutput] = []
        self._first = 0  # number of the first event to send
        self._has_status = True
        self._output: ResponseOutput | None = None  # as of the last encoded record

    def for_reader(self, *, resumes: bool) -> Self:
        """Return an encoder for another reader. resumes: with status, which some clients cannot parse."""
        reader = self._starting_at(self._first)
        reader._has_status = resumes
        return reader

    def opening(self, log: StreamLog) -> bytes:
        """Return the events before the first record."""
        return _blocks(self.opening_events(log))

    def opening_events(self, log: StreamLog) -> list[Event]:
        """Return the events before the first record, without a format."""
        return self._head.opening(log, self._first)

    def encode(self, log: StreamLog, items: list[Item]) -> bytes:
        """Return the events of some items."""
        blocks = []
        for item in items:
            if isinstance(item, LogEntry):
                blocks.append(_blocks(self.events(log, item)))
            elif self._has_status:
                blocks.append(self.wire.status(item))
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def events(self, log: StreamLog, entry: LogEntry) -> list[Event]:
        """Return the events of a record, without a format."""
        output = self._output
        if output is None or output.records != entry.seq - 1:
            output = self._output = self._output_before(log, entry.seq)
        events = output.advance(entry.record)
        self._keep_checkpoint(output)
        return events

    def body(self, log: StreamLog, n: int) -> dict[str, Any]:
        """Return the response, complete. Raises `ApiError` if it failed."""
        if isinstance(failure := log.records[-1], Failure):
            raise failure_error(failure)
        return self.response(log)

    def response(self, log: StreamLog) -> dict[str, Any]:
        """Return the response as of now, failed or not. May be called in a thread."""
        output = ResponseOutput(self._head, log, math.inf, is_whole=True)
        for record in tuple(log.records):
            output.advance(record)
        return output.view()

    async def resume(self, log: StreamLog, after: int) -> tuple[Self, int] | None:
        """Return an encoder for a reader that has received the events up to number `after`, and the number of records
        before those that it needs; None if no event will follow. Raises `ApiError` (400) for an event in the future.
        """
        next_event = (await self._latest_output(log)).number
        is_ahead = log.is_restored and not log.is_closed  # the rest is being computed again
        if after >= next_event and not is_ahead:
            message = f"starting_after must be less than {next_event}, the number of events so far, got {after}"
            raise ApiError(400, message, param="starting_after", code="cursor_refused")
        if log.is_closed and after == next_event - 1:
            return None
        reader = self._starting_at(after + 1)
        known = bisect_right(self._checkpoints, after + 1, key=lambda output: output.number)
        return reader, self._checkpoints[known - 1].records if known else 0

    async def _latest_output(self, log: StreamLog) -> ResponseOutput:
        """Return the output as of all records, without blocking the event loop for long."""
        output = self._output_before(log, CHECKPOINT_RECORDS * len(self._checkpoints) + 1)
        output.first = math.inf
        while output.records < len(log.records):
            for record in log.records[output.records : output.records + CHECKPOINT_RECORDS]:
                output.advance(record)
            self._keep_checkpoint(output)
            await asyncio.sleep(0)
        return output

    def _starting_at(self, first: int) -> Self:
        reader = copy.copy(self)
        reader._first, reader._output = first, None
        return reader

    def _output_before(self, log: StreamLog, seq: int) -> ResponseOutput:
        """Return the output before record `seq`, from the last checkpoint before it."""
        known = min(len(self._checkpoints), (seq - 1) // CHECKPOINT_RECORDS)
        output = self._checkpoints[known - 1].copy() if known else ResponseOutput(self._head, log, self._first)
        output.first = math.inf
        for record in log.records[output.records : seq - 1]:
            output.advance(record)
        output.first = self._first
        return output

    def _keep_checkpoint(self, output: ResponseOutput) -> None:
        if output.records == CHECKPOINT_RECORDS * (len(self._checkpoints) + 1):
            self._checkpoints.append(output.checkpoint())


def _blocks(events: Iterable[Event]) -> bytes:
    return b"".join([RESPONSES.frame(event.data, event.kind.encode()) for event in events])
