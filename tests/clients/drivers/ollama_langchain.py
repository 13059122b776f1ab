"""LangChain's ChatOllama and OllamaLLM."""

from __future__ import annotations

import common
from forecast import Forecast
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM


def model(url: str = common.URL, name: str = common.MODEL, **fields: object) -> ChatOllama:
    return ChatOllama(base_url=url, model=name, **fields)


def scripted(**fields: object) -> ChatOllama:
    """Return the scripted model."""
    return model(common.SCRIPTED_URL, common.SCRIPTED_MODEL, **fields)


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.TOOL_RESULT


def chat() -> None:
    assert model(validate_model_on_init=True).invoke(common.QUESTION).content
    assert OllamaLLM(base_url=common.URL, model=common.MODEL, num_predict=10).invoke("One two three")


def stream() -> None:
    assert "".join(chunk.content for chunk in model().stream(common.QUESTION))


def turns() -> None:
    messages = []
    for answers in range(3):
        messages.append(HumanMessage(common.COUNT_QUESTION))
        if answers == 1:  # the sum of a stream goes back too
            first, *rest = scripted().stream(messages)
            messages.append(sum(rest, first))
        else:
            messages.append(scripted().invoke(messages))
        assert messages[-1].text == common.counts(answers)


def tools() -> None:
    agent = create_agent(scripted(), [get_weather])
    state = {"messages": []}
    for turn in (1, 2):
        state = agent.invoke({"messages": [*state["messages"], HumanMessage(common.TOOL_QUESTION)]})
        assert len(state["messages"]) == 4 * turn and common.TOOL_RESULT in state["messages"][-1].text
    messages = [*state["messages"], HumanMessage(common.COUNT_QUESTION)]
    assert agent.invoke({"messages": messages})["messages"][-1].text == common.counts(4, 2)


def structured() -> None:
    for method in ({}, {"method": "json_schema"}, {"method": "json_mode"}):
        shown = model(num_predict=common.MAX_TOKENS).with_structured_output(Forecast, include_raw=True, **method)
        answer = shown.invoke(common.QUESTION)
        assert method.get("method") == "json_mode" or isinstance(answer["parsed"], Forecast), answer


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL).invoke(common.QUESTION), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).invoke(common.QUESTION), "temperature")


def cancel() -> None:
    chunks = scripted().stream(common.ENDLESS_QUESTION)
    next(chunks)
    common.wait_for_running(1)
    chunks.close()
    common.wait_for_running(0)


common.run_features(chat, stream, turns, tools, structured, errors, cancel)
