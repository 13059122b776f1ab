"""The openai library for Python: realtime sessions in text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import common
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeResponse, RealtimeServerEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(RealtimeServerEvent)
TOOL = {"type": "function", "name": "get_weather", "parameters": common.WEATHER_PARAMETERS}
VOICE = {"output_modalities": ["audio"], "audio": {"output": {"voice": "marin"}}}  # has no effect


class Session:
    """Connection, and the helpers of a text app."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.deltas: list[str] = []

    async def say(self, text: str) -> None:
        """Add a message of the user."""
        content = [{"type": "input_text", "text": text}]
        await self.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})

    async def answer(self, question: str = "", after_delta: Callable[[], Any] | None = None) -> RealtimeResponse:
        """Ask for an answer, and return it. after_delta: called after the first delta."""
        if question:
            await self.say(question)
        await self.connection.response.create()
        self.deltas.clear()
        async for event in self.connection:
            if not event.type.startswith("carousel."):
                EVENT.validate_python(event.to_dict())
            if event.type == "error":
                raise RuntimeError(event.error.message)
            if event.type == "response.output_text.delta":
                self.deltas.append(event.delta)
                if after_delta is not None:
                    await after_delta()
                    after_delta = None
            if event.type == "response.done":
                return event.response
        raise RuntimeError("the connection has ended")


@asynccontextmanager
async def session(url: str, served_model: str, **fields: object) -> AsyncIterator[Session]:
    """Connect, and set the fields of the session."""
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        client.realtime.connect(model=served_model) as connection,
    ):
        await connection.session.update(session={"type": "realtime", **VOICE, **fields})
        yield Session(connection)


def scripted(**fields: object) -> Any:
    return session(common.SCRIPTED_URL, common.SCRIPTED_MODEL, **fields)


def run(feature: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(feature, 60))


def text(response: RealtimeResponse) -> str:
    [message] = response.output
    return message.content[0].text


def chat() -> None:
    async def ask() -> None:
        async with session(common.URL, common.MODEL, max_output_tokens=20) as talk:
            assert text(await talk.answer(common.QUESTION))

    run(ask())


def stream() -> None:
    async def ask() -> None:
        async with session(common.URL, common.MODEL, max_output_tokens=20) as talk:
            answer = await talk.answer(common.QUESTION)
            assert len(talk.deltas) > 1 and "".join(talk.deltas) == text(answer)

    run(ask())


def turns() -> None:
    async def ask() -> None:
        async with scripted() as talk:
            for answers in range(3):
                assert text(await talk.answer(common.COUNT_QUESTION)) == common.counts(answers)

    run(ask())


def tools() -> None:
    async def ask() -> None:
        async with scripted(tools=[TOOL]) as talk:
            [call] = (await talk.answer(common.TOOL_QUESTION)).output
            assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Rome"}
            output = {"type": "function_call_output", "call_id": call.call_id, "output": common.TOOL_RESULT}
            await talk.connection.conversation.item.create(item=output)
            assert common.TOOL_RESULT in text(await talk.answer())
            assert text(await talk.answer(common.COUNT_QUESTION)) == common.counts(2, 1)

    run(ask())


def errors() -> None:
    async def refused(**fields: object) -> None:
        async with session(common.URL, common.MODEL, **fields) as talk:
            await talk.answer(common.QUESTION)

    common.check_error(lambda: run(refused(model=common.UNKNOWN_MODEL)), common.UNKNOWN_MODEL)
    common.check_error(lambda: run(refused(max_output_tokens=0)), "max_output_tokens")


def cancel() -> None:
    async def interrupt() -> None:
        async with scripted() as talk:
            answer = await talk.answer(common.ENDLESS_QUESTION, after_delta=talk.connection.response.cancel)
            assert (answer.status, answer.status_details.reason) == ("cancelled", "client_cancelled")
            await asyncio.to_thread(common.wait_for_running, 0)
            assert await talk.answer(common.COUNT_QUESTION)

    run(interrupt())


def resume() -> None:
    async def come_back() -> None:
        client = AsyncOpenAI(base_url=f"{common.SCRIPTED_URL}/v1", api_key="none", max_retries=0)
        connection = await client.realtime.connect(model=common.SCRIPTED_MODEL).enter()
        created = await connection.recv()
        await Session(connection).say(common.COUNT_QUESTION)
        while (await connection.recv()).type != "conversation.item.done":
            pass
        connection._connection.transport.abort()
        query = {"session": created.session.id}
        async with client.realtime.connect(model=common.SCRIPTED_MODEL, extra_query=query) as again:
            assert (await again.recv()).session.id == created.session.id
            assert text(await Session(again).answer()) == common.counts(0)
        await client.close()

    run(come_back())


common.run_features(chat, stream, turns, tools, errors, cancel, resume)
