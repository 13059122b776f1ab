"""The openai library for Python: responses."""

from __future__ import annotations

import json
import time

import common
import everyday
from forecast import Forecast
from openai import BadRequestError, NotFoundError, OpenAI, pydantic_responses_function_tool
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

client = OpenAI(base_url=f"{common.URL}/v1", api_key="none", max_retries=0)
scripted = OpenAI(base_url=f"{common.SCRIPTED_URL}/v1", api_key="none", max_retries=0)

EVENT = TypeAdapter(ResponseStreamEvent)
FIELDS = {"model": common.MODEL, "input": common.QUESTION, "max_output_tokens": common.MAX_TOKENS}
TOOLS = [{"type": "function", "name": "get_weather", "parameters": common.WEATHER_PARAMETERS, "strict": True}]
KEPT = {"X-Carousel-Resume": "60"}  # the response goes on without a reader


def validated(answer: BaseModel) -> Response:
    """Return a response after validation, which the library itself skips."""
    return Response.model_validate(answer.to_dict())


def chat() -> None:
    assert validated(client.responses.create(**FIELDS)).output_text


def stream() -> None:
    events = [EVENT.validate_python(event.to_dict()) for event in client.responses.create(**FIELDS, stream=True)]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.completed" and events[-1].response.output_text == text != ""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with client.responses.stream(**FIELDS) as streamed:
        assert streamed.get_final_response().output_text


def turns() -> None:
    items = []
    for answers in range(3):
        items.append({"role": "user", "content": common.COUNT_QUESTION})
        if answers == 1:  # items of a stream go back too
            with scripted.responses.stream(model=common.SCRIPTED_MODEL, input=items) as streamed:
                response = streamed.get_final_response()
        else:
            response = scripted.responses.create(model=common.SCRIPTED_MODEL, input=items)
        items += response.output
        assert response.output_text == common.counts(answers)


def tools() -> None:
    items = [{"role": "user", "content": common.TOOL_QUESTION}]
    first = validated(scripted.responses.create(model=common.SCRIPTED_MODEL, input=items, tools=TOOLS))
    [call] = first.output
    assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Rome"}
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": common.TOOL_RESULT}]
    with scripted.responses.stream(model=common.SCRIPTED_MODEL, input=items, tools=TOOLS) as streamed:
        end = streamed.get_final_response()
    assert common.TOOL_RESULT in end.output_text
    items += [*end.output, {"role": "user", "content": common.COUNT_QUESTION}]
    third = scripted.responses.create(model=common.SCRIPTED_MODEL, input=items, tools=TOOLS)
    assert third.output_text == common.counts(2, 1)
    grouped = [{"type": "namespace", "name": "home", "description": "At home.", "tools": TOOLS}]
    question = common.TOOL_QUESTION.replace("get_weather", "home__get_weather")
    [call] = scripted.responses.create(model=common.SCRIPTED_MODEL, input=question, tools=grouped).output
    assert (call.namespace, call.name) == ("home", "get_weather")
    forced = client.responses.create(**FIELDS, tools=TOOLS, tool_choice="required", temperature=0)
    assert forced.output[-1].type == "function_call"


def structured() -> None:
    parsed = client.responses.parse(**FIELDS, text_format=Forecast)
    assert isinstance(parsed.output_parsed, Forecast)


def types() -> None:
    def parsed(value: BaseModel) -> object:
        question = common.write_question(everyday.json_of(value))
        fields = {"model": common.SCRIPTED_MODEL, "input": question, "text_format": type(value)}
        return scripted.responses.parse(**fields).output_parsed

    def called(value: BaseModel) -> object:
        question = common.call_question(type(value).__name__, everyday.json_of(value))
        tool = {"tools": [pydantic_responses_function_tool(type(value))], "tool_choice": "required"}
        answer = scripted.responses.parse(model=common.SCRIPTED_MODEL, input=question, **tool)
        return answer.output[0].parsed_arguments

    for ask in (parsed, called):
        everyday.check_examples(ask)


def errors() -> None:
    create = client.responses.create
    unknown = FIELDS | {"model": common.UNKNOWN_MODEL}
    common.check_error(lambda: create(**unknown), NotFoundError.__name__, common.UNKNOWN_MODEL)
    common.check_error(lambda: create(**FIELDS, temperature=9), BadRequestError.__name__, "temperature")


def cancel() -> None:
    fields = {"model": common.SCRIPTED_MODEL, "input": common.ENDLESS_QUESTION, "stream": True}
    with scripted.responses.create(**fields) as events:
        next(iter(events))
        common.wait_for_running(1)
    common.wait_for_running(0)
    with scripted.responses.create(**fields, extra_headers=KEPT) as events:
        response_id = next(iter(events)).response.id
    assert scripted.responses.cancel(response_id).status == "cancelled"
    common.wait_for_running(0)


def resume() -> None:
    read = []
    with client.responses.create(**FIELDS, stream=True, extra_headers=KEPT) as events:
        for event in events:
            read.append(event)
            if event.type == "response.output_text.delta":
                break
    position = {"starting_after": read[-1].sequence_number}
    read += client.responses.retrieve(read[0].response.id, stream=True, **position)
    assert [event.sequence_number for event in read] == list(range(len(read)))
    text = "".join(event.delta for event in read if event.type == "response.output_text.delta")
    assert read[-1].response.output_text == text


def stored() -> None:
    previous, fields = None, {"model": common.SCRIPTED_MODEL, "input": common.COUNT_QUESTION}
    for answers in range(3):
        response = validated(scripted.responses.create(**fields, previous_response_id=previous))
        assert response.output_text == common.counts(answers) and response.previous_response_id == previous
        previous = response.id
    assert [item.type for item in scripted.responses.input_items.list(previous)] == ["message"]
    reference = {"type": "item_reference", "id": response.output[0].id}
    question = {"role": "user", "content": common.COUNT_QUESTION}
    referring = scripted.responses.create(model=common.SCRIPTED_MODEL, input=[question, reference, question])
    assert referring.output_text == common.counts(1)
    conversation = scripted.conversations.create(items=[question], metadata={"topic": "counts"})
    for answers in range(2):
        response = scripted.responses.create(**fields, conversation=conversation.id)
        assert response.output_text == common.counts(answers) and response.conversation.id == conversation.id
    assert len(list(scripted.conversations.items.list(conversation.id))) == 5
    assert scripted.conversations.delete(conversation.id).deleted
    background = client.responses.create(**FIELDS, background=True)
    while background.status in ("queued", "in_progress"):
        time.sleep(0.02)
        background = validated(client.responses.retrieve(background.id))
    assert background.status == "completed" and background.output_text
    events = list(client.responses.create(**FIELDS, background=True, stream=True))
    rest = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in rest] == [event.sequence_number for event in events[4:]]
    client.responses.delete(background.id)
    common.check_error(
        lambda: client.responses.create(**FIELDS, previous_response_id=background.id),
        BadRequestError.__name__,
        background.id,
    )


common.run_features(chat, stream, turns, tools, structured, types, errors, cancel, resume, stored)
