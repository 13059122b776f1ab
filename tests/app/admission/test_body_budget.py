"""Memory of bodies: limits, turns of tenants, and slow clients."""

from __future__ import annotations

import asyncio

import pytest

import app.admission.body_budget as body_budget
from app.admission.body_budget import FREE_BYTES, MEMORY_PER_BYTE, RECEIVED_BYTES, BodyBudget, BodyMemory
from app.errors import ApiError

BODY = RECEIVED_BYTES  # size in bytes of a body in these tests
NEEDED = MEMORY_PER_BYTE * BODY


def reserving(budget: BodyBudget, tenant: str, size: int = BODY) -> tuple[BodyMemory, asyncio.Task[None]]:
    memory = budget.memory(tenant)
    return memory, asyncio.create_task(memory.reserve(size))


async def refusal_of(reserving: asyncio.Task[None]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await asyncio.wait_for(reserving, 10)
    return refused.value


async def settle() -> None:
    """Let all tasks run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_memory_is_returned_at_the_end_of_the_block():
    """After a complete body only its own size stays reserved until then."""
    budget = BodyBudget(4 * NEEDED, 2 * NEEDED)
    with budget.memory("a") as memory:
        await memory.reserve(BODY)
        assert budget.reserved == NEEDED
        memory.keep(BODY // 2)
        assert budget.reserved == NEEDED // 2
    assert budget.reserved == 0


async def test_a_flood_of_one_tenant_leaves_memory_for_others():
    """Its further bodies wait for its own, and a body of another tenant is read at once."""
    budget = BodyBudget(4 * NEEDED, 2 * NEEDED)
    flood = [reserving(budget, "flood") for _ in range(6)]
    _, reserved = reserving(budget, "calm")
    await settle()
    assert reserved.done() and [task.done() for _, task in flood] == [True, True, *[False] * 4]
    assert budget.reserved == 3 * NEEDED and budget.waiting == 4
    flood[0][0].keep(0)
    await settle()
    assert flood[2][1].done() and not flood[3][1].done() and budget.reserved == 3 * NEEDED
    for _, task in flood:
        task.cancel()


async def test_waiting_tenants_take_turns():
    """A tenant with many waiting bodies gets no more of the memory that becomes free than another one."""
    budget = BodyBudget(NEEDED, NEEDED)
    first, _ = reserving(budget, "flood")
    await settle()
    flood = [reserving(budget, "flood") for _ in range(3)]
    calm = [reserving(budget, "calm") for _ in range(1)]
    await settle()
    first.keep(0)
    await settle()
    flood[0][0].keep(0)
    await settle()
    assert [task.done() for _, task in (*flood, *calm)] == [True, False, False, True]
    for _, task in flood:
        task.cancel()


async def test_a_large_body_is_not_kept_waiting_by_smaller_ones_of_others():
    """A smaller body that would fit waits as well, until the large one has its memory."""
    budget = BodyBudget(3 * NEEDED, 3 * NEEDED)
    holders = [reserving(budget, name)[0] for name in ("a", "b")]
    await settle()
    _, large = reserving(budget, "c", 3 * BODY)
    _, small = reserving(budget, "d")
    await settle()
    assert not large.done() and not small.done()
    for holder in holders:
        holder.keep(0)
    await settle()
    assert large.done() and not small.done()
    small.cancel()


async def test_a_small_body_never_waits():
    """Its connection may send as many bytes of headers too."""
    budget = BodyBudget(NEEDED, NEEDED)
    await budget.memory("a").reserve(BODY)
    await asyncio.wait_for(budget.memory("a").reserve(FREE_BYTES), 1)


@pytest.mark.parametrize(("tenant", "status", "name"), [("a", 429, "max_tenant_body"), ("b", 503, "max_body")])
async def test_too_long_a_wait_is_refused(monkeypatch: pytest.MonkeyPatch, tenant: str, status: int, name: str):
    """The error names the limit that was reached, and nothing stays reserved for the refused body."""
    monkeypatch.setattr(body_budget, "MAX_WAIT_SECONDS", 0.01)
    budget = BodyBudget(NEEDED, NEEDED)
    await budget.memory("a").reserve(BODY)
    error = await refusal_of(reserving(budget, tenant)[1])
    assert (error.status, error.code) == (status, f"{name}_memory_exceeded")
    assert "Retry-After" in error.headers and f"{NEEDED:,}" in str(error)
    assert budget.reserved == NEEDED and budget.waiting == 0 and budget.refused[f"{name}_memory"] == 1


async def test_waiting_bodies_are_bounded():
    """What connections have received of waiting bodies takes no more memory than the limits."""
    budget = BodyBudget(3 * NEEDED, NEEDED)
    most = NEEDED // RECEIVED_BYTES
    waiting = [reserving(budget, "a")[1] for _ in range(most + 1)]
    waiting += [reserving(budget, "b")[1] for _ in range(most + 1)]
    await settle()
    assert (await refusal_of(reserving(budget, "a")[1])).status == 429
    waiting += [reserving(budget, name)[1] for name in ("c", "d") for _ in range(most)]
    await settle()
    assert budget.waiting == 3 * most and (await refusal_of(reserving(budget, "e")[1])).status == 503
    for task in waiting:
        task.cancel()
    await settle()
    assert budget.waiting == 0


async def test_a_cancelled_wait_reserves_nothing():
    """A client that leaves at the moment of its turn passes it on."""
    budget = BodyBudget(NEEDED, NEEDED)
    first, _ = reserving(budget, "a")
    await settle()
    _, leaving = reserving(budget, "a")
    _, next_one = reserving(budget, "a")
    await settle()
    first.keep(0)
    leaving.cancel()
    await settle()
    assert leaving.cancelled() and next_one.done() and budget.reserved == NEEDED


@pytest.mark.parametrize("has_waiting", [True, False])
async def test_a_slow_body_is_given_up_while_others_wait(monkeypatch: pytest.MonkeyPatch, has_waiting: bool):
    """A few slow clients cannot hold the memory of all; if no other body waits, a slow client may go on."""
    monkeypatch.setattr(body_budget, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(body_budget, "CHECK_SECONDS", 0.0)
    budget = BodyBudget(NEEDED, NEEDED)

    async def read_slowly() -> None:
        with budget.memory("slow") as memory:
            await memory.reserve(BODY)
            async with memory.arrival():
                memory.count(1)
                await asyncio.Event().wait()

    reading = asyncio.create_task(read_slowly())
    await settle()
    if has_waiting:
        _, waiting = reserving(budget, "calm")
        error = await refusal_of(reading)
        assert (error.status, error.code) == (408, "body_too_slow")
        await asyncio.wait_for(waiting, 10)
        assert budget.refused["body_rate"] == 1
    else:
        await settle()
        assert not reading.done()
        reading.cancel()


async def test_a_fast_body_is_read_to_its_end_while_others_wait(monkeypatch: pytest.MonkeyPatch):
    """Only its rate counts, not its size."""
    monkeypatch.setattr(body_budget, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(body_budget, "CHECK_SECONDS", 0.0)
    budget = BodyBudget(NEEDED, NEEDED)
    with budget.memory("fast") as memory:
        await memory.reserve(BODY)
        _, waiting = reserving(budget, "calm")
        async with memory.arrival():
            for _ in range(100):
                memory.count(BODY)
                await asyncio.sleep(0)
    await asyncio.wait_for(waiting, 10)
