"""Following a log, with and without direct writes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from hypothesis import given
from hypothesis import strategies as st

from app.streams.stream_log import ChoiceStarted, Delta, Item, LogEntry, StreamLog, Usage
from app.streams.tail import stream_chunks
from engine.types import Phase, StatusEvent
from tests.limits import HANG_SECONDS


class LogReader:
    """Reader without encoding: its chunks are the log's items. `accepts_writes` is the result of its direct writes."""

    def __init__(self, accepts_writes: bool) -> None:
        self.accepts_writes = accepts_writes
        self.seen: list[Item] = []

    def encode(self, log: StreamLog, items: list[Item]) -> list[Item]:
        return items

    def write(self, items: list[Item]) -> bool:
        if self.accepts_writes:
            self.seen += items
        return self.accepts_writes

    async def follow(self, log: StreamLog, after: int = 0, leave_after: int | None = None) -> list[LogEntry]:
        """Follow the log and return the records seen.

        It may leave early; a direct write that exceeds `leave_after` is not seen.
        """
        async with aclosing(stream_chunks(log, after, self, self)) as chunks:
            async for items in chunks:
                self.seen += items
                if leave_after is not None and len(self.seen) >= leave_after:
                    break
        return [item for item in self.seen if isinstance(item, LogEntry)]


@given(
    writes=st.lists(st.integers(1, 5), max_size=12),
    readers=st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 8), max_size=4)), min_size=1, max_size=4),
)
def test_every_reader_sees_every_record_once_in_order_across_visits(writes, readers):
    """Readers follow while the log grows, leave, and resume after the last record they saw."""

    async def write(log: StreamLog) -> None:
        for burst in writes:
            for _ in range(burst):
                log.append(Delta(0, "x", 1))
            log.notify()
            await asyncio.sleep(0)
        log.append(Usage(1, 1, 0))
        log.notify()

    async def read(log: StreamLog, accepts_writes: bool, visits: list[int]) -> list[int]:
        seen: list[LogEntry] = []
        for visit in [*visits, None]:
            after = seen[-1].seq if seen else 0
            seen += await asyncio.wait_for(LogReader(accepts_writes).follow(log, after, visit), HANG_SECONDS)
        return [item.seq for item in seen]

    async def run() -> None:
        log = StreamLog("s", "e", "")
        *results, _ = await asyncio.gather(*(read(log, *reader) for reader in readers), write(log))
        total = sum(writes) + 1
        assert all(seqs == list(range(1, total + 1)) for seqs in results)
        assert (log.readers, log.listeners) == (0, ())

    asyncio.run(run())


async def test_a_reader_that_is_cancelled_does_not_affect_another():
    """Both wait for the same record, and one is cancelled."""
    log = StreamLog("s", "e", "")
    staying = asyncio.create_task(LogReader(accepts_writes=True).follow(log))
    leaving = asyncio.create_task(LogReader(accepts_writes=True).follow(log))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    log.append(Usage(1, 0, 0))
    log.notify()
    assert len(await asyncio.wait_for(staying, HANG_SECONDS)) == 1
    assert (log.readers, log.listeners) == (0, ())


async def test_the_status_follows_what_a_late_reader_has_missed():
    """It is that of the request after these records: a paused answer is shown as paused."""
    log = StreamLog("s", "e", "")
    log.append(ChoiceStarted(0))
    log.status = StatusEvent("s", 0, Phase.PAUSED)
    reader = LogReader(accepts_writes=False)
    async with aclosing(stream_chunks(log, 0, reader, reader)) as chunks:
        assert [type(item) for item in await anext(chunks)] == [LogEntry, StatusEvent]


async def test_a_late_reader_gets_the_current_status_only():
    """Only the newest status is sent, and none of a finished request."""
    log = StreamLog("s", "e", "")
    for position in (3, 2, 1):
        log.status = StatusEvent("s", 0, Phase.QUEUED, position)
    reader = LogReader(accepts_writes=False)
    async with aclosing(stream_chunks(log, 0, reader, reader)) as chunks:
        assert [item.position for item in await anext(chunks)] == [1]  # type: ignore[union-attr]
    log.append(Usage(1, 0, 0))
    async with aclosing(stream_chunks(log, 0, reader, reader)) as chunks:
        assert [type(item) for item in await anext(chunks)] == [LogEntry]
