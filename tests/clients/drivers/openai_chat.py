"""The openai library for Python: chat completions."""

from __future__ import annotations

import json

import common
import everyday
from forecast import Forecast
from openai import BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

client = OpenAI(base_url=f"{common.URL}/v1", api_key="none", max_retries=0)
scripted = OpenAI(base_url=f"{common.SCRIPTED_URL}/v1", api_key="none", max_retries=0)

QUESTION = [{"role": "user", "content": common.QUESTION}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": common.WEATHER_PARAMETERS}}]
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "forecast", "schema": common.FORECAST_SCHEMA, "strict": True},
}


def validated(kind: type[BaseModel], answer: BaseModel) -> BaseModel:
    """Return an answer after validation, which the library itself skips."""
    return kind.model_validate(answer.to_dict())


def chat() -> None:
    answer = client.chat.completions.create(model=common.MODEL, messages=QUESTION, max_tokens=20, logprobs=True)
    assert validated(ChatCompletion, answer).choices[0].message.content


def stream() -> None:
    fields = {"model": common.MODEL, "messages": QUESTION, "max_tokens": common.MAX_TOKENS}
    fields |= {"temperature": 0, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**fields, stream=True, logprobs=True, top_logprobs=2))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert validated(ChatCompletionChunk, chunks[-1]).usage.completion_tokens
    for chunk in chunks:
        validated(ChatCompletionChunk, chunk)
    with client.chat.completions.stream(**fields) as events:
        assert events.get_final_completion().choices[0].message.content


def turns() -> None:
    messages = []
    for answers in range(3):
        messages.append({"role": "user", "content": common.COUNT_QUESTION})
        fields = {"model": common.SCRIPTED_MODEL, "messages": messages}
        if answers == 1:  # the message of a stream goes back too
            with scripted.chat.completions.stream(**fields) as events:
                answer = events.get_final_completion()
        else:
            answer = scripted.chat.completions.create(**fields)
        messages.append(answer.choices[0].message)
        assert messages[-1].content == common.counts(answers)


def tools() -> None:
    messages = [{"role": "user", "content": common.TOOL_QUESTION}]
    answer = scripted.chat.completions.create(model=common.SCRIPTED_MODEL, messages=messages, tools=TOOLS)
    message = validated(ChatCompletion, answer).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": common.TOOL_RESULT}]
    end = scripted.chat.completions.create(model=common.SCRIPTED_MODEL, messages=messages, tools=TOOLS)
    assert common.TOOL_RESULT in end.choices[0].message.content
    # The same conversation goes on with streams.
    messages += [end.choices[0].message, {"role": "user", "content": common.TOOL_QUESTION}]
    fields = {"model": common.SCRIPTED_MODEL, "messages": messages, "tools": TOOLS}
    with scripted.chat.completions.stream(**fields) as events:
        message = events.get_final_completion().choices[0].message
    [streamed] = message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    messages += [message, {"role": "tool", "tool_call_id": streamed.id, "content": common.TOOL_RESULT}]
    messages.append({"role": "user", "content": common.COUNT_QUESTION})
    with scripted.chat.completions.stream(**fields) as events:
        assert events.get_final_completion().choices[0].message.content == common.counts(3, 2)
    required = {"tools": TOOLS, "tool_choice": "required", "max_tokens": common.MAX_TOKENS, "temperature": 0}
    forced = client.chat.completions.create(model=common.MODEL, messages=QUESTION, **required)
    assert forced.choices[0].message.tool_calls[0].function.name == "get_weather"


def structured() -> None:
    fields = {"model": common.MODEL, "messages": QUESTION, "max_tokens": common.MAX_TOKENS}
    answer = client.chat.completions.create(**fields, response_format=FORMAT)
    common.check_forecast(json.loads(answer.choices[0].message.content))
    parsed = client.chat.completions.parse(**fields, response_format=Forecast)
    assert isinstance(parsed.choices[0].message.parsed, Forecast)


def types() -> None:
    def parsed(value: BaseModel) -> object:
        return scripted.chat.completions.parse(**everyday_fields(value)).choices[0].message.parsed

    def streamed(value: BaseModel) -> object:
        with scripted.chat.completions.stream(**everyday_fields(value)) as events:
            return events.get_final_completion().choices[0].message.parsed

    def called(value: BaseModel) -> object:
        question = common.call_question(type(value).__name__, everyday.json_of(value))
        fields = {"model": common.SCRIPTED_MODEL, "messages": [{"role": "user", "content": question}]}
        tool = {"tools": [pydantic_function_tool(type(value))], "tool_choice": "required"}
        answer = scripted.chat.completions.parse(**fields, **tool)
        return answer.choices[0].message.tool_calls[0].function.parsed_arguments

    for ask in (parsed, streamed, called):
        everyday.check_examples(ask)


def sets() -> None:
    fields = everyday_fields(everyday.SETS)
    common.check_error(lambda: scripted.chat.completions.parse(**fields), BadRequestError.__name__, "uniqueItems")


def everyday_fields(value: BaseModel) -> dict[str, object]:
    """Return a request for an everyday value."""
    question = common.write_question(everyday.json_of(value))
    messages = [{"role": "user", "content": question}]
    return {"model": common.SCRIPTED_MODEL, "messages": messages, "response_format": type(value)}


def errors() -> None:
    create = client.chat.completions.create
    common.check_error(
        lambda: create(model=common.UNKNOWN_MODEL, messages=QUESTION), NotFoundError.__name__, common.UNKNOWN_MODEL
    )
    common.check_error(
        lambda: create(model=common.MODEL, messages=QUESTION, temperature=9), BadRequestError.__name__, "temperature"
    )


def cancel() -> None:
    question = [{"role": "user", "content": common.ENDLESS_QUESTION}]
    with scripted.chat.completions.create(model=common.SCRIPTED_MODEL, messages=question, stream=True) as chunks:
        next(iter(chunks))
        assert common.running_requests() == 1
    common.wait_for_running(0)


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel, limits=[sets])
