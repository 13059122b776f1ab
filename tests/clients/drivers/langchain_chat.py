"""LangChain's ChatOpenAI and OpenAI."""

from __future__ import annotations

import common
from forecast import Forecast
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI


def model(url: str = common.URL, name: str = common.MODEL, **fields: object) -> ChatOpenAI:
    """Return a model without retries."""
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=name, max_retries=0, **fields)


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.TOOL_RESULT


def chat() -> None:
    assert model().invoke(common.QUESTION).content
    texts = OpenAI(base_url=f"{common.URL}/v1", api_key="none", model=common.MODEL, max_tokens=10, max_retries=0)
    assert len(texts.batch(["One two three", "The fox"])) == 2


def stream() -> None:
    assert "".join(chunk.content for chunk in model().stream(common.QUESTION))


def tools() -> None:
    bound = model(common.SCRIPTED_URL, common.SCRIPTED_MODEL).bind_tools([get_weather])
    messages = [HumanMessage(common.TOOL_QUESTION)]
    messages.append(bound.invoke(messages))
    messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
    assert common.TOOL_RESULT in bound.invoke(messages).content


def structured() -> None:
    for method in ("json_schema", "function_calling"):
        answer = model(temperature=0).with_structured_output(Forecast, method=method).invoke(common.QUESTION)
        assert isinstance(answer, Forecast)


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL).invoke(common.QUESTION), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).invoke(common.QUESTION), "temperature")


def cancel() -> None:
    chunks = model(common.SCRIPTED_URL, common.SCRIPTED_MODEL).stream(common.ENDLESS_QUESTION)
    next(chunks)
    common.wait_for_running(1)
    chunks.close()
    common.wait_for_running(0)


common.run_features(chat, stream, tools, structured, errors, cancel)
