"""LiveKit's plugin for OpenAI's realtime sessions, with its settings for audio. It needs no LiveKit server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import common
from livekit.agents import llm
from livekit.plugins import openai


@llm.function_tool
async def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return common.TOOL_RESULT


class Talk:
    """Session with a conversation that the client keeps, as LiveKit's agents do."""

    def __init__(self, session: openai.realtime.RealtimeSession) -> None:
        self.session = session
        self.context = llm.ChatContext.empty()
        self.errors: list[str] = []
        session.on("error", lambda event: self.errors.append(f"{event.error} {getattr(event.error, 'body', '')}"))

    async def answer(
        self, question: str = "", after_delta: Callable[[], Awaitable[None] | None] | None = None
    ) -> tuple[str, list[llm.FunctionCall]]:
        """Ask, and return text and calls of the answer. after_delta: called after the first delta."""
        if question:
            context = self.session.chat_ctx.copy()
            context.add_message(role="user", content=question)
            await self.session.update_chat_ctx(context)
        generation = await self.session.generate_reply()
        text = ""
        async for message in generation.message_stream:
            async for delta in message.text_stream:
                text += delta
                if after_delta is not None:
                    after_delta()
                    after_delta = None
        calls = [call async for call in generation.function_stream]
        assert not self.errors, self.errors
        return text, calls


@asynccontextmanager
async def connected(url: str, model: str, **fields: object) -> AsyncIterator[Talk]:
    realtime = openai.realtime.RealtimeModel(model=model, base_url=f"{url}/v1", api_key="none", **fields)
    session = realtime.session()
    try:
        yield Talk(session)
    finally:
        await session.aclose()
        await realtime.aclose()


def scripted() -> AsyncIterator[Talk]:
    return connected(common.SCRIPTED_URL, common.SCRIPTED_MODEL, modalities=["text"])


def run(feature: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(feature, 60))


def chat() -> None:
    async def ask() -> None:
        for modalities in (["text"], ["text", "audio"]):
            async with connected(common.URL, common.MODEL, modalities=modalities) as talk:
                assert (await talk.answer(common.QUESTION))[0]

    run(ask())


def turns() -> None:
    async def ask() -> None:
        async with scripted() as talk:
            for answers in range(3):
                assert (await talk.answer(common.COUNT_QUESTION))[0] == common.counts(answers)

    run(ask())


def tools() -> None:
    async def ask() -> None:
        async with scripted() as talk:
            await talk.session.update_tools([get_weather])
            _, [call] = await talk.answer(common.TOOL_QUESTION)
            assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
            context = talk.session.chat_ctx.copy()
            output = llm.FunctionCallOutput(
                call_id=call.call_id, name=call.name, output=common.TOOL_RESULT, is_error=False
            )
            context.items.append(output)
            await talk.session.update_chat_ctx(context)
            assert common.TOOL_RESULT in (await talk.answer())[0]
            assert (await talk.answer(common.COUNT_QUESTION))[0] == common.counts(2, 1)

    run(ask())


def errors() -> None:
    async def refused() -> None:
        async with connected(common.URL, common.MODEL, modalities=["text"]) as talk:
            talk.session.update_options(max_response_output_tokens=0)
            await talk.answer(common.QUESTION)

    common.check_error(lambda: run(refused()), "max_output_tokens")


def cancel() -> None:
    async def interrupt() -> None:
        async with scripted() as talk:
            await talk.answer(common.ENDLESS_QUESTION, after_delta=talk.session.interrupt)
            await asyncio.to_thread(common.wait_for_running, 0)
            assert (await talk.answer(common.COUNT_QUESTION))[0] == common.counts(1)

    run(interrupt())


common.run_features(chat, turns, tools, errors, cancel)
