"""Requests that one client has lost, and that another client of the same engines adopts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from app.engine_client.adoption import AdoptedRequest, HeldElsewhere
from app.engine_client.client import EngineClient
from engine.ipc import Adopted
from engine.types import Event, FinishReason, TokenEvent
from tests.app.engine_client.test_client import CONFIG, follow, request
from tests.app.engine_client.test_tcp_engine import ListeningEngine, client_of, until
from tests.fakes import text_alone
from tests.limits import HANG_SECONDS


@pytest.fixture
async def engines() -> AsyncIterator[list[ListeningEngine]]:
    started = [ListeningEngine(), ListeningEngine()]
    yield started
    for engine in started:
        engine.stop()


def noted(name: str, tokens: int, alias: str = ""):
    return replace(request(name, tokens), note=b"n", alias=alias, cache_salt="anna")


async def rest(adopted: AdoptedRequest) -> list[Event]:
    """Return the events of an adopted request up to its end."""
    events: list[Event] = []
    ended = asyncio.Event()

    def sink(event: Event) -> None:
        events.append(event)
        if isinstance(event, TokenEvent) and event.finish is not None:
            ended.set()

    adopted.release(sink)
    await asyncio.wait_for(ended.wait(), HANG_SECONDS)
    return events


async def lose(stack: AsyncExitStack, client: EngineClient, name: str, tokens: int, alias: str = "") -> None:
    """Begin a request, and close the connections of its client."""
    began = asyncio.Event()
    client.submit(noted(name, tokens, alias), lambda event: began.set() if isinstance(event, TokenEvent) else None)
    await asyncio.wait_for(began.wait(), HANG_SECONDS)
    await stack.aclose()


@pytest.mark.parametrize("name", ["r", "key"])
async def test_a_request_is_found_in_the_engine_that_has_it(engines: list[ListeningEngine], name: str):
    """By its ID or alias, among several engines; no token is lost or comes twice."""
    addresses = [engine.address for engine in engines]
    async with client_of(*addresses) as second, AsyncExitStack() as stack:
        first = await stack.enter_async_context(client_of(*addresses))
        await until(lambda: first.slots == second.slots == 2 * CONFIG.max_num_seqs)
        with pytest.raises(HeldElsewhere):
            await lose_later(first, second)
        await lose(stack, first, "r", 300, "key")
        adopted = None
        while adopted is None:
            try:
                adopted = await second.adoptions.adopt(name, "anna")
            except HeldElsewhere:  # the engine has not noticed the loss
                await asyncio.sleep(0)
        assert await second.adoptions.adopt("unknown", "anna") is None
        tokens = [event.token_id for event in await rest(adopted) if isinstance(event, TokenEvent)]
        assert [*(event.token_id for event in adopted.tokens), *tokens] == text_alone([1, 2], 0, 300)
        assert second.in_flight == 0


async def lose_later(first: EngineClient, second: EngineClient) -> None:
    """Ask for a request whose client lives, then end it."""
    answer = asyncio.create_task(follow(first, noted("held", 5000)))
    try:
        await until(lambda: first.in_flight)
        while await second.adoptions.adopt("held", "anna") is None:  # it is on its way to the engine
            await asyncio.sleep(0)
    finally:
        first.abort("held")
        await answer


async def test_an_adopted_request_survives_the_death_of_its_engine(engines: list[ListeningEngine]):
    """It moves to another engine with its output so far, as one of the own requests does."""
    addresses = [engine.address for engine in engines]
    async with client_of(*addresses) as second, AsyncExitStack() as stack:
        first = await stack.enter_async_context(client_of(*addresses))
        await until(lambda: first.slots == second.slots == 2 * CONFIG.max_num_seqs)
        await lose(stack, first, "r", 600)
        adopted = None
        while adopted is None:
            try:
                adopted = await second.adoptions.adopt("r", "anna")
            except HeldElsewhere:
                await asyncio.sleep(0)
        holder = next(engine for engine in engines if engine.engine.has_work)
        holder.injector.is_killed = True
        tokens = [event.token_id for event in await rest(adopted) if isinstance(event, TokenEvent)]
        assert [*(event.token_id for event in adopted.tokens), *tokens] == text_alone([1, 2], 0, 600)


async def test_an_answer_that_nothing_waits_for_is_ended_in_its_engine(engines: list[ListeningEngine]):
    """Such as one for a question that was cancelled."""
    async with client_of(engines[0].address) as client:
        await until(lambda: client.slots)
        answer = asyncio.create_task(follow(client, noted("r", 5000)))
        await until(lambda: engines[0].engine.has_work)
        client.adoptions.handle(0, Adopted("r", noted("r", 5000)))  # type: ignore[arg-type]
        assert (await answer)[-1].finish is FinishReason.ABORT  # type: ignore[union-attr]


async def test_a_lost_engine_owes_no_answer(engines: list[ListeningEngine]):
    async with client_of(engines[0].address) as client:
        await until(lambda: client.slots)
        engines[0].injector.is_killed = True
        answer = asyncio.create_task(client.adoptions.adopt("r", "anna"))
        events = asyncio.create_task(follow(client, noted("s", 3)))
        assert await asyncio.wait_for(answer, HANG_SECONDS) is None
        events.cancel()
