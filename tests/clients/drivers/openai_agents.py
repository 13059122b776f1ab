"""OpenAI's agents with chat completions and responses."""

from __future__ import annotations

import asyncio
import os

import common
import everyday
from agents import (
    Agent,
    AgentOutputSchema,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from forecast import Forecast
from openai import AsyncOpenAI
from pydantic import BaseModel

os.environ |= {"OPENAI_BASE_URL": f"{common.SCRIPTED_URL}/v1", "OPENAI_API_KEY": "none"}
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


def scripted_agents(**fields: object) -> list[Agent]:
    """Return an agent for each protocol, and one that the environment configures."""
    default = Agent(name="agent", model=common.SCRIPTED_MODEL, **fields)
    return [*agents(common.SCRIPTED_URL, common.SCRIPTED_MODEL, **fields), default]


def run(agent: Agent, question: str = common.QUESTION, **fields: object) -> object:
    """Return the final output."""
    return RUNNER.run(Runner.run(agent, question, **fields)).final_output


def chat() -> None:
    for agent in agents():
        assert run(agent)


def turns() -> None:
    async def ask(agent: Agent) -> None:
        session = SQLiteSession("turns")
        for answers in range(3):
            if answers == 1:  # items of a stream go back too
                result = Runner.run_streamed(agent, common.COUNT_QUESTION, session=session)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, common.COUNT_QUESTION, session=session)
            assert result.final_output == common.counts(answers)
        items = [*result.to_input_list(), {"role": "user", "content": common.COUNT_QUESTION}]
        assert (await Runner.run(agent, items)).final_output == common.counts(3)

    for agent in scripted_agents():
        RUNNER.run(ask(agent))


def stream() -> None:
    async def read(agent: Agent) -> object:
        result = Runner.run_streamed(agent, common.QUESTION)
        kinds = [event.type async for event in result.stream_events()]
        assert "raw_response_event" in kinds
        return result.final_output

    for agent in agents():
        assert RUNNER.run(read(agent))


def tools() -> None:
    for agent in scripted_agents(tools=[get_weather]):
        session = SQLiteSession("tools")
        for _ in range(2):
            assert common.TOOL_RESULT in run(agent, common.TOOL_QUESTION, session=session)
        assert run(agent, common.COUNT_QUESTION, session=session) == common.counts(4, 2)


def structured() -> None:
    for agent in agents(output_type=Forecast):
        assert isinstance(run(agent), Forecast)


def types() -> None:
    for kind in range(3):

        def parsed(value: BaseModel, kind: int = kind) -> object:
            output_type = AgentOutputSchema(type(value), strict_json_schema=False)
            agent = scripted_agents(output_type=output_type)[kind]
            return run(agent, common.write_question(everyday.json_of(value)))

        everyday.check_examples(parsed, extra=everyday.LOOSE)

        def strict(value: BaseModel, kind: int = kind) -> object:
            agent = scripted_agents(output_type=type(value))[kind]
            return run(agent, common.write_question(everyday.json_of(value)))

        everyday.check_examples(strict, but=[everyday.Customer])  # the library refuses a dict


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

    for agent in scripted_agents():
        RUNNER.run(leave(agent))


def stored() -> None:
    async def ask() -> None:
        agent = Agent(name="agent", model=common.SCRIPTED_MODEL)
        previous = None
        for answers in range(3):
            result = await Runner.run(agent, common.COUNT_QUESTION, previous_response_id=previous)
            assert result.final_output == common.counts(answers)
            previous = result.last_response_id
        conversation = await AsyncOpenAI().conversations.create()
        for answers in range(3):
            result = await Runner.run(agent, common.COUNT_QUESTION, conversation_id=conversation.id)
            assert result.final_output == common.counts(answers)
        session = OpenAIConversationsSession()
        for answers in range(3):
            result = await Runner.run(agent, common.COUNT_QUESTION, session=session)
            assert result.final_output == common.counts(answers)

    RUNNER.run(ask())


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel, stored)
