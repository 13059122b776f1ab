"""Thread queue with a limited CPU share, which pauses after long functions."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.admission import thread_queue as turnstiles
from app.admission.thread_queue import RELEASE_BYTES, Caller, ThreadQueue
from engine.types import ServiceClass
from tests.limits import HANG_SECONDS

HOURS = 1e5  # in seconds


async def test_the_next_function_waits_after_much_work():
    """A function that cost hours delays the next one of any class; a queue without a share never pauses."""
    limited, unlimited, ran = ThreadQueue(1, max_cpu_share=0.5), ThreadQueue(1), []
    for turnstile in (limited, unlimited):
        await turnstile.run(lambda: None, cpu_seconds_spent=HOURS)
    await asyncio.wait_for(unlimited.run(lambda: ran.append("unlimited")), HANG_SECONDS)
    waiting = asyncio.ensure_future(
        limited.run(lambda: ran.append("limited"), Caller(service_class=ServiceClass.INTERACTIVE))
    )
    await asyncio.wait_for(unlimited.run(lambda: None), HANG_SECONDS)
    assert ran == ["unlimited"] and limited.pending == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert limited.pending == 0


async def test_a_function_that_fails_is_charged_too():
    """Refusals cost as much as answers."""
    turnstile = ThreadQueue(1, max_cpu_share=0.5)

    def fail() -> None:
        raise ValueError

    await asyncio.gather(turnstile.run(fail, cpu_seconds_spent=HOURS), return_exceptions=True)
    waiting = asyncio.ensure_future(turnstile.run(lambda: None))
    await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(3)))
    assert not waiting.done()
    waiting.cancel()


async def test_a_pause_ends_by_itself():
    """Waiting functions then run one after another, in order."""
    turnstile, ran = ThreadQueue(1, max_cpu_share=0.5), []
    await turnstile.run(lambda: None, cpu_seconds_spent=0.075)
    await asyncio.wait_for(asyncio.gather(*(turnstile.run(lambda i=i: ran.append(i)) for i in range(3))), HANG_SECONDS)
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("sizes", [[RELEASE_BYTES], [RELEASE_BYTES // 4] * 4])
async def test_memory_is_returned_after_large_inputs_and_after_many_smaller_ones(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
):
    """Memory is returned once, when no function is left, and not after a single smaller input."""
    turnstile, released, pending = ThreadQueue(1), asyncio.Event(), []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(turnstiles, "RELEASE_SECONDS", 0.0)

    def release() -> None:
        pending.append(turnstile.pending)
        loop.call_soon_threadsafe(released.set)

    monkeypatch.setattr(turnstiles, "trim_malloc", release)
    await turnstile.run(lambda: None, size=RELEASE_BYTES // 4 - 1)
    assert turnstile._releasing is None
    await asyncio.gather(*(turnstile.run(lambda: None, size=size) for size in sizes))
    await asyncio.wait_for(released.wait(), HANG_SECONDS)
    assert pending == [0] and turnstile._read == 0


async def test_tenants_take_turns_and_the_smallest_input_of_one_goes_first():
    """A flood of one tenant delays the input of another one by a single function, and its own small input too."""
    turnstile, ran, may_end = ThreadQueue(1), [], threading.Event()
    running = asyncio.ensure_future(turnstile.run(lambda: may_end.wait(10.0), Caller("flood")))
    works = [
        asyncio.ensure_future(turnstile.run(lambda name=name: ran.append(name), Caller(tenant), size=size))
        for tenant, name, size in [
            *(("flood", f"large {number}", 1000) for number in range(3)),
            ("calm", "other", 1000),
            ("flood", "small", 1),
        ]
    ]
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.wait_for(asyncio.gather(running, *works), 10)
    assert ran == ["small", "other", "large 0", "large 1", "large 2"]


async def test_the_cpu_share_of_one_tenant_is_not_used_up_by_another():
    """After much work for one tenant, its next function waits, and that of another tenant runs at once."""
    turnstile = ThreadQueue(1, max_cpu_share=0.5)
    await turnstile.run(lambda: None, Caller("flood"), cpu_seconds_spent=0.9)
    waiting = asyncio.ensure_future(turnstile.run(lambda: None, Caller("flood")))
    await asyncio.wait_for(turnstile.run(lambda: None, Caller("calm")), 5)
    assert not waiting.done()
    waiting.cancel()


async def test_all_tenants_together_have_a_share_too():
    """Many tenants cannot use a core each."""
    turnstile = ThreadQueue(1, max_cpu_share=0.5)
    for number in range(3):
        await turnstile.run(lambda: None, Caller(str(number)), cpu_seconds_spent=HOURS if number == 2 else 0.0)
    waiting = asyncio.ensure_future(turnstile.run(lambda: None, Caller("new")))
    await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(3)))
    assert not waiting.done()
    waiting.cancel()
