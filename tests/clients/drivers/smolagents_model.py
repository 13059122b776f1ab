"""smolagents: its model for OpenAI's protocol, and its agents."""

from __future__ import annotations

import json

import common
from smolagents import ChatMessage, CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: Name of the city.
    """
    # Its agents pass results as text of the user, which the scripted model obeys.
    return common.call_question("final_answer", json.dumps({"answer": common.TOOL_RESULT}))


QUESTION = [ChatMessage(role="user", content=common.QUESTION)]
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "forecast", "schema": common.FORECAST_SCHEMA, "strict": True},
}


def model(name: str = common.MODEL, url: str = common.URL, **fields: object) -> OpenAIModel:
    """Return a model without retries."""
    client = {"client_kwargs": {"max_retries": 0}, "retry": False}
    return OpenAIModel(model_id=name, api_base=f"{url}/v1", api_key="none", **client, **fields)


def chat() -> None:
    assert model().generate(QUESTION).content


def stream() -> None:
    assert "".join(delta.content or "" for delta in model().generate_stream(QUESTION))


def turns() -> None:
    messages = []
    for answers in range(3):
        messages.append(ChatMessage(role="user", content=common.COUNT_QUESTION))
        messages.append(scripted().generate(messages))
        assert messages[-1].content == common.counts(answers)


def tools() -> None:
    for stream_outputs in (False, True):
        agent = ToolCallingAgent([get_weather], scripted(), verbosity_level=LogLevel.OFF, stream_outputs=stream_outputs)
        assert agent.run(common.TOOL_QUESTION) == common.TOOL_RESULT
        assert agent.run(common.TOOL_QUESTION, reset=False) == common.TOOL_RESULT
    limit = {"temperature": 0, "max_tokens": common.MAX_TOKENS}
    [call, *_] = model(**limit).generate(QUESTION, tools_to_call_from=[get_weather]).tool_calls
    assert call.function.name == "get_weather" and call.function.arguments


def scripted() -> OpenAIModel:
    """Return the scripted model."""
    return model(common.SCRIPTED_MODEL, common.SCRIPTED_URL)


def structured() -> None:
    answer = model(max_tokens=common.MAX_TOKENS).generate(QUESTION, response_format=FORMAT)
    common.check_forecast(json.loads(answer.content))
    # This agent asks for its code in an object.
    agent = CodeAgent([], scripted(), verbosity_level=LogLevel.OFF, use_structured_outputs_internally=True)
    assert agent.run(common.write_question('{"thought": "a", "code": "final_answer(6 * 7)"}')) == 42


def errors() -> None:
    common.check_error(lambda: model(common.UNKNOWN_MODEL).generate(QUESTION), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).generate(QUESTION), "temperature")


common.run_features(chat, stream, turns, tools, structured, errors)
