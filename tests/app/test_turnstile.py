"""A turnstile with a limited share of a core rests after long functions."""

from __future__ import annotations

import asyncio
import threading

from app.turnstile import Turnstile
from engine.types import ServiceClass

HOURS = 1e5  # seconds


async def test_after_much_work_the_next_function_waits_for_its_share():
    """A function that cost hours makes the next one wait, of any class; a turnstile without a share never rests."""
    limited, unlimited, ran = Turnstile(1, share=0.5), Turnstile(1), []
    for turnstile in (limited, unlimited):
        await turnstile.run(lambda: None, spent=HOURS)
    await asyncio.wait_for(unlimited.run(lambda: ran.append("unlimited")), 5)
    waiting = asyncio.ensure_future(limited.run(lambda: ran.append("limited"), ServiceClass.INTERACTIVE))
    await asyncio.wait_for(unlimited.run(lambda: None), 5)
    assert ran == ["unlimited"] and limited.pending == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert limited.pending == 0


async def test_a_function_that_fails_is_charged_too():
    """Refusals cost as much as answers."""
    turnstile = Turnstile(1, share=0.5)

    def fail() -> None:
        raise ValueError

    await asyncio.gather(turnstile.run(fail, spent=HOURS), return_exceptions=True)
    waiting = asyncio.ensure_future(turnstile.run(lambda: None))
    await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(3)))
    assert not waiting.done()
    waiting.cancel()


async def test_a_rest_ends_by_itself():
    """Those that waited for it then run in turn, one after another."""
    turnstile, ran = Turnstile(1, share=0.5), []
    await turnstile.run(lambda: None, spent=0.075)
    await asyncio.wait_for(asyncio.gather(*(turnstile.run(lambda i=i: ran.append(i)) for i in range(3))), 10)
    assert ran == [0, 1, 2]
