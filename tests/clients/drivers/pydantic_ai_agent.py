"""Agents of pydantic-ai, with chat completions and responses."""

from __future__ import annotations

import asyncio

import common
from forecast import Forecast
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def models(url: str = common.URL, name: str = common.MODEL) -> list[OpenAIChatModel | OpenAIResponsesModel]:
    """Return a model for each protocol."""
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return [kind(name, provider=provider) for kind in (OpenAIChatModel, OpenAIResponsesModel)]


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.TOOL_RESULT


def chat() -> None:
    for model in models():
        assert Agent(model).run_sync(common.QUESTION).output


def stream() -> None:
    async def read(model: OpenAIChatModel | OpenAIResponsesModel) -> str:
        async with Agent(model).run_stream(common.QUESTION) as streamed:
            return "".join([text async for text in streamed.stream_text(delta=True)])

    for model in models():
        assert asyncio.run(read(model))


def tools() -> None:
    for model in models(common.SCRIPTED_URL, common.SCRIPTED_MODEL):
        assert common.TOOL_RESULT in Agent(model, tools=[get_weather]).run_sync(common.TOOL_QUESTION).output


def structured() -> None:
    for model in models():
        for output_type in (Forecast, NativeOutput(Forecast)):
            assert isinstance(Agent(model, output_type=output_type).run_sync(common.QUESTION).output, Forecast)


def errors() -> None:
    for model in models(name=common.UNKNOWN_MODEL):
        common.check_error(lambda model=model: Agent(model).run_sync(common.QUESTION), common.UNKNOWN_MODEL)
    for model in models():
        agent = Agent(model, model_settings={"temperature": 9})
        common.check_error(lambda agent=agent: agent.run_sync(common.QUESTION), "temperature")


def cancel() -> None:
    async def leave(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
        async with Agent(model).run_stream(common.ENDLESS_QUESTION) as streamed:
            async for _ in streamed.stream_text():
                await asyncio.to_thread(common.wait_for_running, 1)
                break

    for model in models(common.SCRIPTED_URL, common.SCRIPTED_MODEL):
        asyncio.run(leave(model))
        common.wait_for_running(0)


common.run_features(chat, stream, tools, structured, errors, cancel)
