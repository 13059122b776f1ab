"""litellm with its providers for servers of OpenAI's protocol and for vLLM."""

from __future__ import annotations

import json
import os

import common

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at the import; otherwise the list of prices is fetched
import litellm

PROVIDERS = ("openai", "hosted_vllm")
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": common.WEATHER_PARAMETERS}}]
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "forecast", "schema": common.FORECAST_SCHEMA, "strict": True},
}


def complete(provider: str, text: str = common.QUESTION, model: str = common.MODEL, **fields: object) -> object:
    """Return the answer of the real server, or of the scripted one for its model."""
    url = common.SCRIPTED_URL if model == common.SCRIPTED_MODEL else common.URL
    fields.setdefault("messages", [{"role": "user", "content": text}])
    server = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0, "max_retries": 0}
    return litellm.completion(f"{provider}/{model}", **server, **fields)


def chat() -> None:
    for provider in PROVIDERS:
        assert complete(provider).choices[0].message.content


def stream() -> None:
    for provider in PROVIDERS:
        chunks = complete(provider, stream=True, stream_options={"include_usage": True})
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def tools() -> None:
    for provider in PROVIDERS:
        first = complete(provider, common.TOOL_QUESTION, common.SCRIPTED_MODEL, tools=TOOLS).choices[0].message
        [call] = first.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        question = {"role": "user", "content": common.TOOL_QUESTION}
        result = {"role": "tool", "tool_call_id": call.id, "content": common.TOOL_RESULT}
        messages = [question, first.model_dump(), result]
        end = complete(provider, model=common.SCRIPTED_MODEL, messages=messages, tools=TOOLS)
        assert common.TOOL_RESULT in end.choices[0].message.content


def structured() -> None:
    for provider in PROVIDERS:
        answer = complete(provider, response_format=FORMAT, max_tokens=common.MAX_TOKENS)
        common.check_forecast(json.loads(answer.choices[0].message.content))


def errors() -> None:
    for provider in PROVIDERS:
        common.check_error(
            lambda provider=provider: complete(provider, model=common.UNKNOWN_MODEL), common.UNKNOWN_MODEL
        )
        common.check_error(lambda provider=provider: complete(provider, temperature=9), "temperature")


def cancel() -> None:
    chunks = complete("openai", common.ENDLESS_QUESTION, common.SCRIPTED_MODEL, stream=True)
    next(iter(chunks))
    common.wait_for_running(1)
    chunks.completion_stream.close()
    common.wait_for_running(0)


common.run_features(chat, stream, tools, structured, errors, cancel)
