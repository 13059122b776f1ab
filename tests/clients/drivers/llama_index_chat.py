"""LlamaIndex's OpenAILike."""

from __future__ import annotations

import asyncio

import common
import everyday
from forecast import Forecast
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


def model(url: str = common.URL, name: str = common.MODEL, **fields: object) -> OpenAILike:
    """Return a model without retries."""
    kind = {"is_chat_model": True, "is_function_calling_model": True} | fields
    return OpenAILike(model=name, api_base=f"{url}/v1", api_key="none", max_retries=0, **kind)


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.TOOL_RESULT


def chat() -> None:
    assert model().chat([ChatMessage(role="user", content=common.QUESTION)]).message.content
    assert model(is_chat_model=False).complete("One two three").text


def stream() -> None:
    parts = model().stream_chat([ChatMessage(role="user", content=common.QUESTION)])
    assert "".join(part.delta or "" for part in parts)


def scripted() -> OpenAILike:
    """Return the scripted model."""
    return model(common.SCRIPTED_URL, common.SCRIPTED_MODEL)


def turns() -> None:
    engine = SimpleChatEngine.from_defaults(llm=scripted())
    for answers in range(3):
        if answers == 1:  # the message of a stream goes back too
            text = "".join(engine.stream_chat(common.COUNT_QUESTION).response_gen)
        else:
            text = engine.chat(common.COUNT_QUESTION).response
        assert text == common.counts(answers)


def tools() -> None:
    call_by_hand()
    asyncio.run(run_agent())


async def run_agent() -> None:
    """Let an agent call the tool in two turns, and ask it for their number in a third one."""
    agent = FunctionAgent(tools=[get_weather], llm=scripted())
    memory = Memory.from_defaults(session_id="tools")
    for _ in range(2):
        assert common.TOOL_RESULT in str(await agent.run(common.TOOL_QUESTION, memory=memory))
    assert str(await agent.run(common.COUNT_QUESTION, memory=memory)) == common.counts(4, 2)


def call_by_hand() -> None:
    """Call a tool without an agent."""
    llm, tool = scripted(), FunctionTool.from_defaults(get_weather)
    messages = [ChatMessage(role="user", content=common.TOOL_QUESTION)]
    answer = llm.chat_with_tools([tool], chat_history=messages)
    [call] = llm.get_tool_calls_from_response(answer)
    result = tool(**call.tool_kwargs)
    role = {"role": "tool", "additional_kwargs": {"tool_call_id": call.tool_id}}
    messages += [answer.message, ChatMessage(content=result.content, **role)]
    assert common.TOOL_RESULT in llm.chat_with_tools([tool], chat_history=messages).message.content


def structured() -> None:
    structured_model = model().as_structured_llm(Forecast)
    assert isinstance(structured_model.complete(common.QUESTION).raw, Forecast)


def types() -> None:
    def called(value: BaseModel) -> object:
        question = common.call_question(type(value).__name__, everyday.json_of(value))
        return scripted().as_structured_llm(type(value)).complete(question).raw

    # The library leaves out the reference that is the whole schema of a model that contains itself.
    everyday.check_examples(called, but=[everyday.Comment], extra=everyday.LOOSE)


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL).complete("Hi"), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).complete("Hi"), "temperature")


common.run_features(chat, stream, turns, tools, structured, types, errors)
