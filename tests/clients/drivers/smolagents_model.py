"""The model for OpenAI's protocol of smolagents."""

from __future__ import annotations

import json

import common
from smolagents import ChatMessage, OpenAIModel, tool


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: Name of the city.
    """
    return common.TOOL_RESULT


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


def tools() -> None:
    # Its agents pass results as text, so that this is all that they need of a server: a call that is required.
    limit = {"temperature": 0, "max_tokens": common.MAX_TOKENS}
    [call, *_] = model(**limit).generate(QUESTION, tools_to_call_from=[get_weather]).tool_calls
    assert call.function.name == "get_weather" and call.function.arguments


def structured() -> None:
    answer = model(max_tokens=common.MAX_TOKENS).generate(QUESTION, response_format=FORMAT)
    common.check_forecast(json.loads(answer.content))


def errors() -> None:
    common.check_error(lambda: model(common.UNKNOWN_MODEL).generate(QUESTION), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).generate(QUESTION), "temperature")


common.run_features(chat, stream, tools, structured, errors)
