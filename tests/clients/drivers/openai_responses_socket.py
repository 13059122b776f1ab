"""The openai library for Python: responses over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import common
from openai import AsyncOpenAI
from openai.types.responses import Response
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(ResponsesServerEvent)
TOOLS = [{"type": "function", "name": "get_weather", "parameters": common.WEATHER_PARAMETERS, "strict": True}]
ENDS = ("response.completed", "response.incomplete", "response.failed")


async def answer(connection: Any, after_delta: Callable[[str], Any] | None = None, **fields: object) -> Response:
    """Ask, and return the response. after_delta: called with its id after the first delta."""
    await connection.response.create(**fields)
    return await ended(connection, after_delta)


async def ended(connection: Any, after_delta: Callable[[str], Any] | None = None) -> Response:
    """Return the next response that ends."""
    response_id = ""
    async for event in connection:
        EVENT.validate_python(event.to_dict())
        if event.type == "error":
            raise RuntimeError(event.error.message)
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta" and after_delta is not None:
            await after_delta(response_id)
            after_delta = None
        if event.type in ENDS:
            return event.response
    raise AssertionError("the connection has ended")


def run(url: str, feature: Callable[[Any], Coroutine[None, None, None]]) -> None:
    async def connected() -> None:
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            client.responses.connect() as connection,
        ):
            await feature(connection)

    asyncio.run(asyncio.wait_for(connected(), 60))


def scripted(feature: Callable[[Any], Coroutine[None, None, None]]) -> None:
    run(common.SCRIPTED_URL, feature)


FIELDS = {"model": common.MODEL, "input": common.QUESTION, "max_output_tokens": common.MAX_TOKENS}
COUNT = {"model": common.SCRIPTED_MODEL, "input": common.COUNT_QUESTION, "store": False}


def chat() -> None:
    async def ask(connection: Any) -> None:
        assert (await answer(connection, **FIELDS)).output_text

    run(common.URL, ask)


def turns() -> None:
    async def ask(connection: Any) -> None:
        previous: dict[str, str] = {}
        for answers in range(3):
            response = await answer(connection, **COUNT, **previous)
            assert response.output_text == common.counts(answers)
            previous = {"previous_response_id": response.id}

    scripted(ask)


def tools() -> None:
    async def ask(connection: Any) -> None:
        fields = {"model": common.SCRIPTED_MODEL, "tools": TOOLS, "store": False, "stream_id": "main"}
        first = await answer(connection, input=common.TOOL_QUESTION, **fields)
        [call] = first.output
        assert json.loads(call.arguments) == {"city": "Rome"}
        output = {"type": "function_call_output", "call_id": call.call_id, "output": common.TOOL_RESULT}
        second = await answer(connection, input=[output], previous_response_id=first.id, **fields)
        assert common.TOOL_RESULT in second.output_text

    scripted(ask)


def errors() -> None:
    async def unknown(connection: Any) -> None:
        await answer(connection, **FIELDS | {"model": common.UNKNOWN_MODEL})

    async def wrong(connection: Any) -> None:
        await answer(connection, **FIELDS, temperature=9)

    common.check_error(lambda: run(common.URL, unknown), common.UNKNOWN_MODEL)
    common.check_error(lambda: run(common.URL, wrong), "temperature")


def cancel() -> None:
    """Steer an endless response, and leave during another one."""

    async def ask(connection: Any) -> None:
        async def steer(response_id: str) -> None:
            await connection.response.steer(previous_response_id=response_id, input=common.COUNT_QUESTION)

        endless = COUNT | {"input": common.ENDLESS_QUESTION}
        steered = await answer(connection, steer, **endless)
        assert steered.incomplete_details.reason == "steered"
        assert (await ended(connection)).output_text == common.counts(1)
        await connection.response.create(**endless)
        await asyncio.to_thread(common.wait_for_running, 1)

    scripted(ask)
    common.wait_for_running(0)


def stored() -> None:
    async def ask(connection: Any) -> None:
        first = await answer(connection, **COUNT | {"store": True})
        second = await answer(connection, **COUNT | {"store": True}, previous_response_id=first.id)
        assert second.output_text == common.counts(1)

    scripted(ask)


common.run_features(chat, turns, tools, errors, cancel, stored)
