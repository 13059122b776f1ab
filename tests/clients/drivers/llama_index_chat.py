"""LlamaIndex's OpenAILike."""

from __future__ import annotations

import common
from forecast import Forecast
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def model(url: str = common.URL, name: str = common.MODEL, **fields: object) -> OpenAILike:
    """Return a model without retries."""
    kind = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 2048} | fields
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


def tools() -> None:
    llm, tool = model(common.SCRIPTED_URL, common.SCRIPTED_MODEL), FunctionTool.from_defaults(get_weather)
    messages = [ChatMessage(role="user", content=common.TOOL_QUESTION)]
    answer = llm.chat_with_tools([tool], chat_history=messages)
    [call] = llm.get_tool_calls_from_response(answer)
    result = tool(**call.tool_kwargs)
    role = {"role": "tool", "additional_kwargs": {"tool_call_id": call.tool_id}}
    messages += [answer.message, ChatMessage(content=result.content, **role)]
    assert common.TOOL_RESULT in llm.chat_with_tools([tool], chat_history=messages).message.content


def structured() -> None:
    structured_model = model(temperature=0).as_structured_llm(Forecast)
    assert isinstance(structured_model.complete(common.QUESTION).raw, Forecast)


def errors() -> None:
    common.check_error(lambda: model(name=common.UNKNOWN_MODEL).complete("Hi"), common.UNKNOWN_MODEL)
    common.check_error(lambda: model(temperature=9).complete("Hi"), "temperature")


common.run_features(chat, stream, tools, structured, errors)
