"""The openai library for Python: chat completions."""

from __future__ import annotations

import json

import common
from forecast import Forecast
from openai import BadRequestError, NotFoundError, OpenAI
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


def tools() -> None:
    messages = [{"role": "user", "content": common.TOOL_QUESTION}]
    answer = scripted.chat.completions.create(model=common.SCRIPTED_MODEL, messages=messages, tools=TOOLS)
    message = validated(ChatCompletion, answer).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Rome"}
    with scripted.chat.completions.stream(model=common.SCRIPTED_MODEL, messages=messages, tools=TOOLS) as events:
        [streamed] = events.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": common.TOOL_RESULT}]
    end = scripted.chat.completions.create(model=common.SCRIPTED_MODEL, messages=messages, tools=TOOLS)
    assert common.TOOL_RESULT in end.choices[0].message.content
    required = {"tools": TOOLS, "tool_choice": "required", "max_tokens": common.MAX_TOKENS, "temperature": 0}
    forced = client.chat.completions.create(model=common.MODEL, messages=QUESTION, **required)
    assert forced.choices[0].message.tool_calls[0].function.name == "get_weather"


def structured() -> None:
    fields = {"model": common.MODEL, "messages": QUESTION, "max_tokens": common.MAX_TOKENS}
    answer = client.chat.completions.create(**fields, response_format=FORMAT)
    common.check_forecast(json.loads(answer.choices[0].message.content))
    parsed = client.chat.completions.parse(**fields, response_format=Forecast)
    assert isinstance(parsed.choices[0].message.parsed, Forecast)


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


common.run_features(chat, stream, tools, structured, errors, cancel)
