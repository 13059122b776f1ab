"""OpenAI's agents with chat completions and responses."""

from __future__ import annotations

import asyncio

import common
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from forecast import Forecast
from openai import AsyncOpenAI

set_tracing_disabled(True)
RUNNER = asyncio.Runner()  # connections of a client belong to one event loop


@function_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.TOOL_RESULT


def agents(url: str = common.URL, name: str = common.MODEL, **fields: object) -> list[Agent]:
    """Return an agent for each protocol."""
    kinds = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return [Agent(name="agent", model=kind(name, openai_client=client), **fields) for kind in kinds]


def run(agent: Agent, question: str = common.QUESTION) -> object:
    """Return the final output."""
    return RUNNER.run(Runner.run(agent, question)).final_output


def chat() -> None:
    for agent in agents():
        assert run(agent)


def stream() -> None:
    async def read(agent: Agent) -> object:
        result = Runner.run_streamed(agent, common.QUESTION)
        kinds = [event.type async for event in result.stream_events()]
        assert "raw_response_event" in kinds
        return result.final_output

    for agent in agents():
        assert RUNNER.run(read(agent))


def tools() -> None:
    for agent in agents(common.SCRIPTED_URL, common.SCRIPTED_MODEL, tools=[get_weather]):
        assert common.TOOL_RESULT in run(agent, common.TOOL_QUESTION)


def structured() -> None:
    for agent in agents(output_type=Forecast):
        assert isinstance(run(agent), Forecast)


def errors() -> None:
    for agent in agents(name=common.UNKNOWN_MODEL):
        common.check_error(lambda agent=agent: run(agent), common.UNKNOWN_MODEL)
    for agent in agents(model_settings=ModelSettings(temperature=9)):
        common.check_error(lambda agent=agent: run(agent), "temperature")


def cancel() -> None:
    async def leave(agent: Agent) -> None:
        result = Runner.run_streamed(agent, common.ENDLESS_QUESTION)
        async for _ in result.stream_events():
            await asyncio.to_thread(common.wait_for_running, 1)
            result.cancel()
        await asyncio.to_thread(common.wait_for_running, 0)

    for agent in agents(common.SCRIPTED_URL, common.SCRIPTED_MODEL):
        RUNNER.run(leave(agent))


common.run_features(chat, stream, tools, structured, errors, cancel)
