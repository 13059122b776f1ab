"""Following a log, at once and otherwise."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from hypothesis import given, settings
from hypothesis import strategies as st

from app.following import pieces
from app.streams import Delta, Item, Numbered, StreamLog, Usage
from engine.types import Phase, StatusEvent


class Reading:
    """Encodes nothing: its pieces are the log's items. As a writer it takes them or does not."""

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.seen: list[Item] = []

    def encode(self, log: StreamLog, items: list[Item]) -> list[Item]:
        return items

    def write(self, items: list[Item]) -> bool:
        if self.takes:
            self.seen += items
        return self.takes

    async def follow(self, log: StreamLog, after: int = 0, leave_after: int | None = None) -> list[Numbered]:
        """What it sees of the log; it may leave early, and what it was then given at once too much is not seen."""
        async with aclosing(pieces(log, after, self, self)) as reading:
            async for items in reading:
                self.seen += items
                if leave_after is not None and len(self.seen) >= leave_after:
                    break
        return [item for item in self.seen if isinstance(item, Numbered)]


@given(
    writes=st.lists(st.integers(1, 5), max_size=12),
    readers=st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 8), max_size=4)), min_size=1, max_size=4),
)
@settings(max_examples=100)
def test_every_reader_sees_every_record_once_in_order_however_often_it_leaves(writes, readers):
    """Readers follow while the log grows, leave, and come back behind the last record they saw."""

    async def write(log: StreamLog) -> None:
        for burst in writes:
            for _ in range(burst):
                log.append(Delta(0, "x", 1))
            log.announce()
            await asyncio.sleep(0)
        log.append(Usage(1, 1, 0))
        log.announce()

    async def read(log: StreamLog, takes: bool, visits: list[int]) -> list[int]:
        seen: list[Numbered] = []
        for visit in [*visits, None]:
            after = seen[-1].seq if seen else 0
            seen += await asyncio.wait_for(Reading(takes).follow(log, after, visit), 10)
        return [item.seq for item in seen]

    async def play() -> None:
        log = StreamLog("s", "e", "")
        *results, _ = await asyncio.gather(*(read(log, *reader) for reader in readers), write(log))
        total = sum(writes) + 1
        assert all(seqs == list(range(1, total + 1)) for seqs in results)
        assert (log.readers, log.followers) == (0, ())

    asyncio.run(play())


async def test_a_reader_that_is_cancelled_does_not_disturb_another():
    """Both wait for the same record; one goes away."""
    log = StreamLog("s", "e", "")
    staying = asyncio.create_task(Reading(takes=True).follow(log))
    leaving = asyncio.create_task(Reading(takes=True).follow(log))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    log.append(Usage(1, 0, 0))
    log.announce()
    assert len(await asyncio.wait_for(staying, 5)) == 1
    assert (log.readers, log.followers) == (0, ())


async def test_a_late_reader_is_told_how_things_stand_not_how_they_stood():
    """Only the newest status is given, and none of a finished request."""
    log = StreamLog("s", "e", "")
    for position in (3, 2, 1):
        log.status = StatusEvent("s", 0, Phase.QUEUED, position)
    nobody = Reading(takes=False)
    async with aclosing(pieces(log, 0, nobody, nobody)) as reading:
        assert [item.position for item in await anext(reading)] == [1]  # type: ignore[union-attr]
    log.append(Usage(1, 0, 0))
    async with aclosing(pieces(log, 0, nobody, nobody)) as reading:
        assert [type(item) for item in await anext(reading)] == [Numbered]
