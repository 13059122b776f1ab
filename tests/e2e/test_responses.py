"""The openai library's Responses API against a real server."""

from __future__ import annotations

from typing import Literal

import openai
import pydantic
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(ResponseStreamEvent)
RESUME = {"X-Carousel-Resume": "60"}
QUESTION = "Count from 1 to 8."


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture
def slow_client(slow_server):
    with openai.OpenAI(base_url=f"{slow_server.url}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture
def model(client) -> str:
    return client.models.list().data[0].id


def test_a_response_has_the_text_of_a_chat(client, model):
    """The same conversation with the same seed gives the same text, whole and streamed."""
    fields = {"model": model, "temperature": 0.8, "extra_body": {"seed": 7}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(messages=messages, max_tokens=40, **fields)
    fields |= {"input": QUESTION, "instructions": "Be brief.", "max_output_tokens": 40}
    whole = client.responses.create(**fields)
    assert whole.output_text == chat.choices[0].message.content
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == f"response.{whole.status}" and events[-1].response.output_text == whole.output_text
    for event in events:
        EVENT.validate_python(event.to_dict(), strict=True)


def test_the_stream_helper_accumulates_the_response(client, model):
    """It checks that items and contents come in the protocol's order."""
    with client.responses.stream(model=model, input=QUESTION, temperature=0) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == snapshots[-1]
    again = client.responses.retrieve(final.id)
    assert again.output_text == final.output_text and again.usage == final.usage


def test_output_is_sent_back_as_input(client, model):
    """A conversation goes on with the items of the last response, sent by hand or by its id."""
    history = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(model=model, input=history, max_output_tokens=20)
    history += [item.model_dump() for item in first.output]
    history += [{"role": "user", "content": "Thank you!"}]
    second = client.responses.create(model=model, input=history, max_output_tokens=20)
    assert second.usage.input_tokens > first.usage.input_tokens
    count = client.responses.input_tokens.count(model=model, input=history)
    assert count.input_tokens == second.usage.input_tokens
    chained = client.responses.create(
        model=model, input="Thank you!", previous_response_id=first.id, max_output_tokens=20
    )
    assert chained.usage.input_tokens == second.usage.input_tokens


def test_log_probabilities_add_up_to_the_text(client, model):
    """They are in the deltas and in the whole response."""
    fields = {"model": model, "input": QUESTION, "max_output_tokens": 6, "temperature": 0, "top_logprobs": 2}
    whole = client.responses.create(**fields, include=["message.output_text.logprobs"])
    entries = whole.output[0].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(whole.output_text)
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    events = list(client.responses.create(**fields, stream=True))
    deltas = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert deltas == [entry.token for entry in entries]


class Weather(pydantic.BaseModel):
    """Weather of a city."""

    city: Literal["Ulm", "Rome"]
    days: int


TOOL = openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}


def test_a_required_tool_is_called(client, model):
    """Streamed and whole calls are equal, the library reads the arguments, and their result is accepted."""
    fields = {"model": model, "input": QUESTION, "tools": [TOOL], "tool_choice": "required", "temperature": 0}
    whole = client.responses.create(**fields, max_output_tokens=200, parallel_tool_calls=False)
    (call,) = [item for item in whole.output if item.type == "function_call"]
    assert whole.status == "completed" and call.name == "Weather" and Weather.model_validate_json(call.arguments)
    with client.responses.stream(**fields, max_output_tokens=200, parallel_tool_calls=False) as stream:
        events = list(stream)
        parsed = stream.get_final_response().output[-1]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == parsed.arguments == call.arguments and isinstance(parsed.parsed_arguments, dict | Weather)
    history = [{"role": "user", "content": QUESTION}, *whole.output]
    history += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    answer = client.responses.create(model=model, input=history, tools=[TOOL], tool_choice="none", max_output_tokens=9)
    assert [item.type for item in answer.output] == ["message"]


def test_an_answer_has_the_requested_format(client, model):
    """The library's helper parses it."""
    parsed = client.responses.parse(
        model=model, input=QUESTION, text_format=Weather, max_output_tokens=200, temperature=0
    )
    assert isinstance(parsed.output_parsed, Weather) and parsed.text.format.name == "Weather"


def test_a_running_response_is_followed_and_cancelled(slow_client):
    """A reader that resumes by number misses nothing, and the cancelled response stays readable until it is deleted."""
    model = slow_client.models.list().data[0].id
    fields = {"model": model, "input": "Tell me a story about a fox.", "extra_body": {"ignore_eos": True}}
    with slow_client.responses.create(**fields, stream=True, extra_headers=RESUME) as stream:
        first = [event for _, event in zip(range(7), stream, strict=False)]
    identity = first[0].response.id
    assert slow_client.responses.retrieve(identity).status == "in_progress"
    with slow_client.responses.retrieve(identity, stream=True, starting_after=first[-1].sequence_number) as stream:
        rest = [event for _, event in zip(range(9), stream, strict=False)]
        cancelled = slow_client.responses.cancel(identity)
        rest += stream
    assert cancelled.status == rest[-1].response.status == "cancelled"
    numbers = [event.sequence_number for event in [*first, *rest]]
    assert numbers == list(range(len(numbers)))
    text = "".join(e.delta for e in [*first, *rest] if e.type == "response.output_text.delta")
    assert text == cancelled.output_text == slow_client.responses.retrieve(identity).output_text
    with slow_client.responses.stream(response_id=identity, starting_after=numbers[-2]) as stream:
        assert [event.sequence_number for event in stream] == numbers[-1:]
    slow_client.responses.delete(identity)
    with pytest.raises(openai.NotFoundError, match=identity):
        slow_client.responses.retrieve(identity)
    with pytest.raises(openai.NotFoundError, match=identity):
        slow_client.responses.input_items.list(identity)
