"""LangChain's ChatOpenAI and OpenAI."""

from __future__ import annotations

import common
import everyday
from forecast import Forecast
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

KINDS = ({}, {"use_responses_api": True})  # chat completions and responses


def model(url: str = common.URL, name: str = common.MODEL, **fields: object) -> ChatOpenAI:
    """Return a model without retries."""
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=name, max_retries=0, **fields)


def scripted(**fields: object) -> ChatOpenAI:
    """Return the scripted model."""
    return model(common.SCRIPTED_URL, common.SCRIPTED_MODEL, **fields)


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


def turns() -> None:
    for kind in KINDS:
        messages = []
        for answers in range(3):
            messages.append(HumanMessage(common.COUNT_QUESTION))
            if answers == 1:  # the sum of a stream goes back too
                first, *rest = scripted(**kind).stream(messages)
                messages.append(sum(rest, first))
            else:
                messages.append(scripted(**kind).invoke(messages))
            assert messages[-1].text == common.counts(answers)


def tools() -> None:
    for kind in KINDS:
        call_by_hand(scripted(**kind))
        agent = create_agent(scripted(**kind), [get_weather])
        state = {"messages": []}
        for turn in (1, 2):
            state = agent.invoke({"messages": [*state["messages"], HumanMessage(common.TOOL_QUESTION)]})
            assert len(state["messages"]) == 4 * turn and common.TOOL_RESULT in state["messages"][-1].text
        messages = [*state["messages"], HumanMessage(common.COUNT_QUESTION)]
        assert agent.invoke({"messages": messages})["messages"][-1].text == common.counts(4, 2)


def call_by_hand(chat_model: ChatOpenAI) -> None:
    """Call a tool without an agent."""
    bound = chat_model.bind_tools([get_weather])
    messages = [HumanMessage(common.TOOL_QUESTION)]
    messages.append(bound.invoke(messages))
    messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
    assert common.TOOL_RESULT in bound.invoke(messages).text


def structured() -> None:
    for kind in KINDS:
        for method in ({}, {"method": "json_schema"}, {"method": "function_calling"}):
            answer = model(**kind).with_structured_output(Forecast, **method).invoke(common.QUESTION)
            assert isinstance(answer, Forecast)
        state = create_agent(model(**kind), [], response_format=Forecast).invoke({"messages": common.QUESTION})
        assert isinstance(state["structured_response"], Forecast)


def types() -> None:
    for kind in KINDS:

        def parsed(value: BaseModel, kind: dict[str, object] = kind) -> object:
            question = common.write_question(everyday.json_of(value))
            return scripted(**kind).with_structured_output(type(value)).invoke(question)

        def called(value: BaseModel, kind: dict[str, object] = kind) -> object:
            question = common.call_question(type(value).__name__, everyday.json_of(value))
            return scripted(**kind).with_structured_output(type(value), method="function_calling").invoke(question)

        everyday.check_examples(parsed)
        everyday.check_examples(called, extra=everyday.LOOSE)


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL).invoke(common.QUESTION), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).invoke(common.QUESTION), "temperature")


def cancel() -> None:
    chunks = scripted().stream(common.ENDLESS_QUESTION)
    next(chunks)
    common.wait_for_running(1)
    chunks.close()
    common.wait_for_running(0)


def stored() -> None:
    chat_model = scripted(use_responses_api=True, use_previous_response_id=True)
    messages = []
    for answers in range(3):
        messages.append(HumanMessage(common.COUNT_QUESTION))
        messages.append(chat_model.invoke(messages))
        assert messages[-1].text == common.counts(answers)


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel, stored)
