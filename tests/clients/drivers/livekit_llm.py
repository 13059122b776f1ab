"""LiveKit's plugin for OpenAI's language models: by chat completions, responses, or responses over a WebSocket.

It needs no LiveKit server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine

import common
from livekit.agents import llm, utils
from livekit.plugins import openai

KIND = sys.argv[3]


@llm.function_tool
async def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return common.TOOL_RESULT


def model_of(url: str, model: str) -> llm.LLM:
    """Return the model of a server."""
    if KIND == "chat":
        return openai.LLM(model=model, base_url=f"{url}/v1", api_key="none", max_retries=0)
    is_socket = KIND == "socket"
    address = f"{url.replace('http', 'ws')}/v1/responses" if is_socket else f"{url}/v1"
    return openai.responses.LLM(model=model, base_url=address, api_key="none", use_websocket=is_socket)


async def ask(model: llm.LLM, context: llm.ChatContext, question: str = "") -> tuple[str, list[llm.FunctionToolCall]]:
    """Add a message of the user, and return text and calls of the answer, which is added too."""
    if question:
        context.add_message(role="user", content=question)
    text, calls = "", []
    async with model.chat(chat_ctx=context, tools=[get_weather]) as stream:
        async for chunk in stream:
            if chunk.delta is not None:
                text += chunk.delta.content or ""
                calls += chunk.delta.tool_calls
    if text:
        context.add_message(role="assistant", content=text)
    for call in calls:
        context.items.append(llm.FunctionCall(call_id=call.call_id, name=call.name, arguments=call.arguments))
    return text, calls


def run(feature: Coroutine[None, None, None]) -> None:
    async def within() -> None:
        async with utils.http_context.open():
            await asyncio.wait_for(feature, 60)

    asyncio.run(within())


def chat() -> None:
    async def talk() -> None:
        model = model_of(common.URL, common.MODEL)
        assert (await ask(model, llm.ChatContext.empty(), common.QUESTION))[0]
        await model.aclose()

    run(talk())


def turns() -> None:
    async def talk() -> None:
        model, context = model_of(common.SCRIPTED_URL, common.SCRIPTED_MODEL), llm.ChatContext.empty()
        for answers in range(3):
            assert (await ask(model, context, common.COUNT_QUESTION))[0] == common.counts(answers)
        await model.aclose()

    run(talk())


def tools() -> None:
    async def talk() -> None:
        model, context = model_of(common.SCRIPTED_URL, common.SCRIPTED_MODEL), llm.ChatContext.empty()
        _, [call] = await ask(model, context, common.TOOL_QUESTION)
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
        context.items.append(
            llm.FunctionCallOutput(call_id=call.call_id, name=call.name, output=common.TOOL_RESULT, is_error=False)
        )
        assert common.TOOL_RESULT in (await ask(model, context))[0]
        assert (await ask(model, context, common.COUNT_QUESTION))[0] == common.counts(2, 1)
        await model.aclose()

    run(talk())


def errors() -> None:
    async def talk() -> None:
        model = model_of(common.SCRIPTED_URL, common.UNKNOWN_MODEL)
        try:
            await ask(model, llm.ChatContext.empty(), common.QUESTION)
        finally:
            await model.aclose()

    common.check_error(lambda: run(talk()), common.UNKNOWN_MODEL)


def cancel() -> None:
    async def talk() -> None:
        model, context = model_of(common.SCRIPTED_URL, common.SCRIPTED_MODEL), llm.ChatContext.empty()
        context.add_message(role="user", content=common.ENDLESS_QUESTION)
        async with model.chat(chat_ctx=context) as stream:
            async for _ in stream:
                break
        # The client closes the WebSocket of an answer that was left when it needs the next one.
        assert (await ask(model, llm.ChatContext.empty(), common.COUNT_QUESTION))[0] == common.counts(0)
        await asyncio.to_thread(common.wait_for_running, 0)
        await model.aclose()

    run(talk())


common.run_features(chat, turns, tools, errors, cancel)
