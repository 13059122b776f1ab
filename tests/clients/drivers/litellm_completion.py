"""litellm with its providers for servers of OpenAI's protocol and for vLLM."""

from __future__ import annotations

import json
import os

import common
import everyday
from pydantic import BaseModel

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


def turns() -> None:
    for provider in PROVIDERS:
        messages = []
        for answers in range(3):
            messages.append({"role": "user", "content": common.COUNT_QUESTION})
            request = {"provider": provider, "model": common.SCRIPTED_MODEL, "messages": messages}
            if answers == 1:  # the message that the library builds of a stream goes back too
                answer = litellm.stream_chunk_builder(list(complete(**request, stream=True)))
            else:
                answer = complete(**request)
            messages.append(answer.choices[0].message)
            assert messages[-1].content == common.counts(answers)
    items = []
    for answers in range(3):
        items.append({"role": "user", "content": common.COUNT_QUESTION})
        response = respond(model=common.SCRIPTED_MODEL, input=items)
        items += response.output
        assert response.output_text == common.counts(answers)


def respond(model: str = common.MODEL, **fields: object) -> object:
    """Return a response of the real server, or of the scripted one for its model."""
    url = common.SCRIPTED_URL if model == common.SCRIPTED_MODEL else common.URL
    return litellm.responses(model=f"openai/{model}", api_base=f"{url}/v1", api_key="none", **fields)


def tools() -> None:
    for provider in PROVIDERS:
        messages = [{"role": "user", "content": common.TOOL_QUESTION}]
        request = {"provider": provider, "model": common.SCRIPTED_MODEL, "messages": messages, "tools": TOOLS}
        first = complete(**request).choices[0].message
        [call] = first.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        messages += [first, {"role": "tool", "tool_call_id": call.id, "content": common.TOOL_RESULT}]
        end = complete(**request).choices[0].message
        assert common.TOOL_RESULT in end.content
        messages += [end, {"role": "user", "content": common.COUNT_QUESTION}]
        assert complete(**request).choices[0].message.content == common.counts(2, 1)


def structured() -> None:
    for provider in PROVIDERS:
        answer = complete(provider, response_format=FORMAT, max_tokens=common.MAX_TOKENS)
        common.check_forecast(json.loads(answer.choices[0].message.content))


def types() -> None:
    for provider in PROVIDERS:

        def parsed(value: BaseModel, provider: str = provider) -> object:
            question = common.write_question(everyday.json_of(value))
            answer = complete(provider, question, common.SCRIPTED_MODEL, response_format=type(value))
            return type(value).model_validate_json(answer.choices[0].message.content)

        everyday.check_examples(parsed)


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


def stored() -> None:
    previous = None
    for answers in range(3):
        fields = {} if previous is None else {"previous_response_id": previous}
        response = respond(model=common.SCRIPTED_MODEL, input=common.COUNT_QUESTION, **fields)
        assert response.output_text == common.counts(answers)
        previous = response.id


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel, stored)
