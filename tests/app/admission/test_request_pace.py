"""Requests that need no engine are served at a bounded rate, tenants in turn."""

from __future__ import annotations

import asyncio

import pytest

from app.admission.request_pace import REQUEST_SECONDS, RequestPace
from app.errors import ApiError
from tests.limits import HANG_SECONDS

FLOOD = 60  # requests: more than the share allows at once


def always() -> bool:
    """Return that answers are generated."""
    return True


async def test_requests_beyond_the_share_of_a_tenant_wait_and_are_served():
    """Those within it do not wait."""
    pace = RequestPace(always)
    await pace.wait_turn("flood")
    assert pace.delayed == 0
    turns = [asyncio.ensure_future(pace.wait_turn("flood")) for _ in range(FLOOD)]
    await asyncio.sleep(0)
    assert pace.delayed > 0 and not turns[-1].done()
    await asyncio.wait_for(asyncio.gather(*turns), HANG_SECONDS)


async def test_a_tenant_that_floods_delays_no_other():
    """The other tenant's request is served while the flood waits."""
    pace = RequestPace(always, share=0.01)
    flood = [asyncio.ensure_future(pace.wait_turn("flood")) for _ in range(FLOOD)]
    await asyncio.sleep(0)
    assert not flood[-1].done()
    await pace.wait_turn("person")
    for turn in flood:
        turn.cancel()


async def test_waiting_tenants_take_turns():
    """A few requests of one are served between many of another."""
    pace, order = RequestPace(always, share=1.0), []

    async def client(name: str, requests: int) -> None:
        for _ in range(requests):
            await pace.wait_turn(name)
        order.append(name)

    clients = (client("flood", 30 * FLOOD), client("other", FLOOD))
    await asyncio.wait_for(asyncio.gather(*clients), HANG_SECONDS)
    assert order == ["other", "flood"]


async def test_a_flood_of_requests_is_refused_beyond_a_number_that_waits():
    """The refusal says when to come back, and the ones that wait are bounded."""
    pace = RequestPace(always, share=0.01, max_waiting=3)
    turns = [asyncio.ensure_future(pace.wait_turn("flood")) for _ in range(FLOOD)]
    await asyncio.sleep(0)
    refused = [turn.exception() for turn in turns if turn.done() and turn.exception()]
    assert sum(not turn.done() for turn in turns) == 3 and len(refused) == pace.refused > 0
    assert isinstance(refused[0], ApiError) and refused[0].status == 429 and "Retry-After" in refused[0].headers
    for turn in turns:
        turn.cancel()


async def test_requests_that_are_given_up_leave_the_queue_to_others():
    """The queue goes on after all that waited are gone."""
    pace = RequestPace(always, share=REQUEST_SECONDS * 20, max_waiting=FLOOD)
    gone = [asyncio.ensure_future(pace.wait_turn("flood")) for _ in range(FLOOD)]
    await asyncio.sleep(0)
    for turn in gone:
        turn.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await asyncio.wait_for(pace.wait_turn("flood"), HANG_SECONDS)


@pytest.mark.parametrize("share", [0.3, 1.0])
async def test_the_queue_is_empty_at_the_end(share: float):
    """No turn is forgotten, also if the tenants together are limited."""
    pace = RequestPace(always, share=share)
    turns = [asyncio.ensure_future(pace.wait_turn(f"tenant {number % 7}")) for number in range(7 * FLOOD)]
    await asyncio.wait_for(asyncio.gather(*turns), HANG_SECONDS)
    assert pace.delayed > 0


async def test_requests_do_not_wait_while_no_answer_is_generated():
    """Those that wait are served when the last answer ends."""
    answers = [1]
    pace = RequestPace(lambda: bool(answers), share=0.001)
    turns = [asyncio.ensure_future(pace.wait_turn("program")) for _ in range(2 * FLOOD)]
    await asyncio.sleep(0)
    assert not turns[-1].done()
    answers.clear()
    await asyncio.wait_for(asyncio.gather(*turns, pace.wait_turn("program")), HANG_SECONDS)
