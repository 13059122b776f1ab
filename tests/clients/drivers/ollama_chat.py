"""The ollama package for Python."""

from __future__ import annotations

import common
from forecast import Forecast
from ollama import Client, Options

client = Client(host=common.URL)
scripted = Client(host=common.SCRIPTED_URL)
MODEL, SCRIPTED_MODEL = common.MODEL, common.SCRIPTED_MODEL
MESSAGES = [{"role": "user", "content": common.QUESTION}]


def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: name of the city
    """
    assert city == "Rome"
    return common.TOOL_RESULT


def chat() -> None:
    answer = client.chat(MODEL, MESSAGES)
    assert answer.message.content and answer.done and answer.done_reason in ("stop", "length")
    assert answer.prompt_eval_count and answer.eval_count and answer.total_duration
    cut = client.chat(f"{MODEL}:latest", MESSAGES, options=Options(num_predict=2, temperature=0, seed=1))
    assert (cut.eval_count, cut.done_reason, cut.model) == (2, "length", f"{MODEL}:latest")


def generate() -> None:
    assert client.generate(MODEL, common.QUESTION).response
    assert client.generate(MODEL, "One two three", raw=True, options={"num_predict": 4}).eval_count == 4
    parts = list(client.generate(MODEL, common.QUESTION, system="Be brief.", stream=True, keep_alive="5m"))
    assert "".join(part.response for part in parts) and parts[-1].done
    assert client.generate(MODEL).done_reason == "load"


def stream() -> None:
    parts = list(client.chat(MODEL, MESSAGES, stream=True, logprobs=True, top_logprobs=2))
    assert "".join(part.message.content for part in parts)
    assert [part.done for part in parts].index(True) == len(parts) - 1
    assert len(parts[0].logprobs[0].top_logprobs) == 2


def turns() -> None:
    messages = []
    for answers in range(3):
        messages.append({"role": "user", "content": common.COUNT_QUESTION})
        if answers == 1:
            parts = [part.message for part in scripted.chat(SCRIPTED_MODEL, messages, stream=True)]
            messages.append({"role": "assistant", "content": "".join(part.content for part in parts)})
            assert messages[-1]["content"] == common.counts(answers)
        else:
            messages.append(scripted.chat(SCRIPTED_MODEL, messages).message)
            assert messages[-1].content == common.counts(answers)


def tools() -> None:
    for is_streamed in (False, True):
        messages = [{"role": "user", "content": common.TOOL_QUESTION}]
        if is_streamed:
            parts = scripted.chat(SCRIPTED_MODEL, messages, tools=[get_weather], stream=True)
            message = next(part.message for part in parts if part.message.tool_calls)
        else:
            message = scripted.chat(SCRIPTED_MODEL, messages, tools=[get_weather]).message
        messages.append(message)
        for call in message.tool_calls:
            result = get_weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
        answer = scripted.chat(SCRIPTED_MODEL, messages, tools=[get_weather]).message
        assert common.TOOL_RESULT in answer.content
        messages += [answer, {"role": "user", "content": common.COUNT_QUESTION}]
        assert scripted.chat(SCRIPTED_MODEL, messages, tools=[get_weather]).message.content == common.counts(2, 1)


def structured() -> None:
    schema = Forecast.model_json_schema()
    answer = client.chat(MODEL, MESSAGES, format=schema, options={"num_predict": common.MAX_TOKENS})
    assert Forecast.model_validate_json(answer.message.content)


def models() -> None:
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert "completion" in client.show(MODEL).capabilities


def errors() -> None:
    common.check_error(lambda: client.chat(common.UNKNOWN_MODEL, MESSAGES), common.UNKNOWN_MODEL, "404")
    common.check_error(lambda: client.chat(MODEL, MESSAGES, options={"temperature": 9.0}), "options.temperature")
    common.check_error(lambda: client.chat(MODEL, MESSAGES, options={"mirostat": 2}), "options.mirostat")


def cancel() -> None:
    question = [{"role": "user", "content": common.ENDLESS_QUESTION}]
    parts = scripted.chat(SCRIPTED_MODEL, question, stream=True)
    next(parts)
    common.wait_for_running(1)
    parts.close()
    common.wait_for_running(0)


def changed_models() -> None:
    common.check_error(lambda: client.pull("other"), "/api/pull", "carousel fetch")
    common.check_error(lambda: client.create("other", from_=MODEL), "/api/create")
    common.check_error(lambda: client.embed(MODEL, "text"), "/api/embed")


common.run_features(chat, generate, stream, turns, tools, structured, models, errors, cancel, limits=[changed_models])
