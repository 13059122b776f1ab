"""Events of WebSocket clients are handled at a bounded rate, in turn."""

from __future__ import annotations

import asyncio

from app.admission.event_pacer import EventPacer
from tests.limits import HANG_SECONDS


async def test_a_burst_passes_at_once_and_more_events_wait():
    """The next event is handled when it is due, not with the burst."""
    pacer = EventPacer(per_second=20, burst=3)
    for _ in range(3):
        turn = asyncio.ensure_future(pacer.wait_turn())
        await asyncio.sleep(0)
        assert turn.done()
    late = asyncio.ensure_future(pacer.wait_turn())
    await asyncio.sleep(0)
    assert not late.done()
    await asyncio.wait_for(late, HANG_SECONDS)


async def test_a_socket_that_floods_takes_turns_with_the_others():
    """The other socket has its turn between two events of the flood."""
    pacer, order = EventPacer(per_second=500, burst=1), []

    async def socket(name: str, events: int) -> None:
        for _ in range(events):
            await pacer.wait_turn()
            order.append(name)

    await asyncio.wait_for(asyncio.gather(socket("flood", 20), socket("other", 5)), HANG_SECONDS)
    assert "flood flood" not in " ".join(order[1:10])


async def test_an_event_whose_connection_is_lost_takes_no_turn():
    """The next event takes its place."""
    pacer = EventPacer(per_second=100, burst=1)
    await pacer.wait_turn()
    lost, next_one = asyncio.ensure_future(pacer.wait_turn()), asyncio.ensure_future(pacer.wait_turn())
    await asyncio.sleep(0)
    lost.cancel()
    await asyncio.wait_for(next_one, HANG_SECONDS)
    assert lost.cancelled()
