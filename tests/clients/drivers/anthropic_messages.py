"""The anthropic library for Python."""

from __future__ import annotations

import json

import common
import everyday
from anthropic import Anthropic, BadRequestError, NotFoundError, beta_tool
from anthropic.types import Message, RawMessageStreamEvent
from forecast import Forecast
from pydantic import BaseModel, TypeAdapter

client = Anthropic(base_url=common.URL, api_key="none", max_retries=0)
scripted = Anthropic(base_url=common.SCRIPTED_URL, api_key="none", max_retries=0)

EVENT = TypeAdapter(RawMessageStreamEvent)
FIELDS = {
    "model": common.MODEL,
    "messages": [{"role": "user", "content": common.QUESTION}],
    "max_tokens": common.MAX_TOKENS,
}
TOOLS = [{"name": "get_weather", "input_schema": common.WEATHER_PARAMETERS}]


def chat() -> None:
    answer = Message.model_validate(client.messages.create(**FIELDS).to_dict())
    assert answer.content[0].text and answer.stop_reason == "end_turn"
    assert client.messages.count_tokens(**{key: FIELDS[key] for key in ("model", "messages")}).input_tokens


def stream() -> None:
    events = [EVENT.validate_python(event.to_dict()) for event in client.messages.create(**FIELDS, stream=True)]
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    with client.messages.stream(**FIELDS) as streamed:
        assert "".join(streamed.text_stream)


@beta_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    assert city == "Rome"
    return common.TOOL_RESULT


def turns() -> None:
    messages = []
    for answers in range(3):
        messages.append({"role": "user", "content": common.COUNT_QUESTION})
        fields = {"model": common.SCRIPTED_MODEL, "max_tokens": common.MAX_TOKENS, "messages": messages}
        if answers == 1:  # the message of a stream goes back too
            with scripted.messages.stream(**fields) as streamed:
                message = streamed.get_final_message()
        else:
            message = scripted.messages.create(**fields)
        messages.append({"role": message.role, "content": message.content})
        assert message.content[0].text == common.counts(answers)


def tools() -> None:
    messages = [{"role": "user", "content": common.TOOL_QUESTION}]
    fields = {"model": common.SCRIPTED_MODEL, "max_tokens": common.MAX_TOKENS, "tools": TOOLS}
    answer = Message.model_validate(scripted.messages.create(**fields, messages=messages).to_dict())
    [call] = answer.content
    assert call.name == "get_weather" and call.input == {"city": "Rome"} and answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": common.TOOL_RESULT}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    with scripted.messages.stream(**fields, messages=messages) as streamed:
        assert common.TOOL_RESULT in streamed.get_final_text()
        messages.append({"role": "assistant", "content": streamed.get_final_message().content})
    messages.append({"role": "user", "content": common.COUNT_QUESTION})
    assert scripted.messages.create(**fields, messages=messages).content[0].text == common.counts(2, 1)
    for is_stream in (False, True):
        request = fields | {"tools": [get_weather], "messages": messages[:1], "stream": is_stream}
        assert common.TOOL_RESULT in scripted.beta.messages.tool_runner(**request).until_done().content[0].text
    forced = client.messages.create(**FIELDS, tools=TOOLS, tool_choice={"type": "any"}, extra_body={"temperature": 0})
    assert forced.content[-1].type == "tool_use"


def structured() -> None:
    config = {"format": {"type": "json_schema", "schema": common.FORECAST_SCHEMA}}
    answer = client.messages.create(**FIELDS, output_config=config)
    common.check_forecast(json.loads(answer.content[0].text))
    assert isinstance(client.messages.parse(**FIELDS, output_format=Forecast).parsed_output, Forecast)


def types() -> None:
    def parsed(value: BaseModel) -> object:
        question = [{"role": "user", "content": common.write_question(everyday.json_of(value))}]
        fields = {"model": common.SCRIPTED_MODEL, "max_tokens": common.MAX_TOKENS, "messages": question}
        return scripted.messages.parse(**fields, output_format=type(value)).parsed_output

    everyday.check_examples(parsed, but=[everyday.Customer])  # the library allows no key in the object of a dict


def errors() -> None:
    create = client.messages.create
    unknown = FIELDS | {"model": common.UNKNOWN_MODEL}
    common.check_error(lambda: create(**unknown), NotFoundError.__name__, common.UNKNOWN_MODEL)
    wrong = {"temperature": 9}
    common.check_error(lambda: create(**FIELDS, extra_body=wrong), BadRequestError.__name__, "temperature")


def cancel() -> None:
    question = [{"role": "user", "content": common.ENDLESS_QUESTION}]
    with scripted.messages.stream(model=common.SCRIPTED_MODEL, messages=question, max_tokens=100_000) as streamed:
        next(iter(streamed))
        common.wait_for_running(1)
    common.wait_for_running(0)


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel)
