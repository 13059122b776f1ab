"""Memory of the messages of one WebSocket."""

from __future__ import annotations

import asyncio

from app.admission.body_budget import MEMORY_PER_BYTE, BodyBudget
from app.http.message_memory import HANDLED_MEMORY, MESSAGE_MEMORY, MessageMemory
from tests.limits import HANG_SECONDS

LARGE = 100_000


async def received(budget: BodyBudget) -> tuple[MessageMemory, dict]:
    """Return the memory of a socket that has received a large message."""
    extensions = {MESSAGE_MEMORY: {"memory": lambda: budget.memory("anna")}}
    granted = asyncio.Event()
    memory = MessageMemory(extensions, LARGE, granted.set, lambda: None)
    memory.count(LARGE)
    await asyncio.wait_for(granted.wait(), HANG_SECONDS)
    memory.complete()
    return memory, extensions


async def test_a_message_in_the_same_read_does_not_replace_the_memory_of_a_large_one():
    """Several messages may wait for the application, and each has its own memory."""
    budget = BodyBudget(1 << 30, 1 << 30)
    memory, _ = await received(budget)
    memory.complete()  # a small message, whose frame was parsed with the end of the large one
    assert budget.reserved == MEMORY_PER_BYTE * LARGE
    memory.take()
    memory.release_handled()
    assert budget.reserved == 0
    memory.take()
    memory.release_handled()
    assert budget.reserved == 0


async def test_all_memory_is_returned_at_the_end_of_the_connection():
    """It does not depend on what the application has taken."""
    budget = BodyBudget(1 << 30, 1 << 30)
    memory, _ = await received(budget)
    memory.complete()
    memory.close()
    assert budget.reserved == 0


async def test_a_session_may_keep_the_memory_of_a_message():
    """It is then returned by the session, and only by it."""
    budget = BodyBudget(1 << 30, 1 << 30)
    memory, extensions = await received(budget)
    memory.take()
    kept = extensions[HANDLED_MEMORY]["detach"]()
    memory.release_handled()
    memory.close()
    assert budget.reserved == MEMORY_PER_BYTE * LARGE
    assert extensions[HANDLED_MEMORY]["detach"]() is None
    kept.keep(0)
    assert budget.reserved == 0
