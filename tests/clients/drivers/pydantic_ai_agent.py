"""Agents of pydantic-ai, with chat completions and responses."""

from __future__ import annotations

import asyncio
import os

import common
import everyday
from forecast import Forecast
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

os.environ |= {"OPENAI_BASE_URL": f"{common.URL}/v1", "OPENAI_API_KEY": "none"}
NAMES = ("openai", "openai-chat", "openai-responses")  # all that a user configures otherwise is the name of a model


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
    for name in NAMES:
        assert Agent(f"{name}:{common.MODEL}").run_sync(common.QUESTION).output


def stream() -> None:
    async def read(model: OpenAIChatModel | OpenAIResponsesModel) -> str:
        async with Agent(model).run_stream(common.QUESTION) as streamed:
            return "".join([text async for text in streamed.stream_text(delta=True)])

    for model in models():
        assert asyncio.run(read(model))


def scripted_models() -> list[OpenAIChatModel | OpenAIResponsesModel]:
    """Return the scripted model for each protocol."""
    return models(common.SCRIPTED_URL, common.SCRIPTED_MODEL)


def turns() -> None:
    async def ask(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
        agent, history = Agent(model), []
        for answers in range(3):
            if answers == 1:  # the messages of a stream go back too
                async with agent.run_stream(common.COUNT_QUESTION, message_history=history) as result:
                    output = await result.get_output()
            else:
                result = await agent.run(common.COUNT_QUESTION, message_history=history)
                output = result.output
            history = result.all_messages()
            assert output == common.counts(answers)

    for model in scripted_models():
        asyncio.run(ask(model))


def tools() -> None:
    for model in scripted_models():
        agent, history = Agent(model, tools=[get_weather]), []
        for _ in range(2):
            result = agent.run_sync(common.TOOL_QUESTION, message_history=history)
            history = result.all_messages()
            assert common.TOOL_RESULT in result.output
        end = agent.run_sync(common.COUNT_QUESTION, message_history=history)
        assert end.output == common.counts(4, 2)


def structured() -> None:
    for model in models():
        for output_type in (Forecast, NativeOutput(Forecast)):
            agent = Agent(model, output_type=output_type)
            first = agent.run_sync(common.QUESTION)
            second = agent.run_sync(common.QUESTION, message_history=first.all_messages())
            assert isinstance(first.output, Forecast) and isinstance(second.output, Forecast)


def types() -> None:
    for model in scripted_models():

        def called(value: BaseModel, model: OpenAIChatModel | OpenAIResponsesModel = model) -> object:
            question = common.call_question("final_result", everyday.json_of(value))
            return Agent(model, output_type=type(value)).run_sync(question).output

        everyday.check_examples(called, extra=everyday.LOOSE)
        for kind in (NativeOutput, PromptedOutput):

            def written(
                value: BaseModel,
                model: OpenAIChatModel | OpenAIResponsesModel = model,
                kind: type[NativeOutput | PromptedOutput] = kind,
            ) -> object:
                question = common.write_question(everyday.json_of(value))
                return Agent(model, output_type=kind(type(value))).run_sync(question).output

            everyday.check_examples(written, extra=everyday.LOOSE)


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

    for model in scripted_models():
        asyncio.run(leave(model))
        common.wait_for_running(0)


def stored() -> None:
    agent, history = Agent(scripted_models()[1]), []
    auto = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    for answers in range(3):
        result = agent.run_sync(common.COUNT_QUESTION, message_history=history, model_settings=auto)
        assert result.output == common.counts(answers)
        history = result.all_messages()
    settings = OpenAIResponsesModelSettings(openai_previous_response_id=history[-1].provider_response_id)
    assert agent.run_sync(common.COUNT_QUESTION, model_settings=settings).output == common.counts(3)


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel, stored)
