"""The anthropic library against a real server."""

from __future__ import annotations

import json

import anthropic
import httpx
import pytest

TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
QUESTION = [{"role": "user", "content": "Count from 1 to 8."}]


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as anthropic_client:
        yield anthropic_client


@pytest.fixture
def model(server) -> str:
    return httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]


def test_a_streamed_message_equals_the_unstreamed_one(client, model):
    """Text, usage and reason; the greedy text is also that of chat completions."""
    fields = {"model": model, "messages": QUESTION, "max_tokens": 40, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert events[0] == "message_start" and events[-1] == "message_stop"
    assert streamed.content[0].text == whole.content[0].text
    assert (streamed.stop_reason, whole.stop_reason) == ("end_turn", "end_turn")
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    chat = {"model": model, "messages": QUESTION, "max_tokens": 40, "temperature": 0}
    other = httpx.post(str(client.base_url) + "/v1/chat/completions", json=chat).json()
    assert other["choices"][0]["message"]["content"] == whole.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_loop_with_a_tool(client, model, choice):
    """The input of a forced call satisfies the schema, streamed or whole, and its result is accepted."""
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    fields = {"model": model, "max_tokens": 200, "tools": [TOOL], "extra_body": {"temperature": 0}}
    forced = {"tool_choice": {**choice, "disable_parallel_tool_use": True}}
    answer = client.messages.create(**fields, messages=messages, **forced)
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and call.name == "get_weather" and list(call.input) == ["city"]
    with client.messages.stream(**fields, messages=messages, **forced) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == call.input
    messages += [
        {"role": "assistant", "content": answer.content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny, 25 C"}]},
                {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    end = client.messages.create(**fields, messages=messages, tool_choice={"type": "none"})
    assert end.content[0].type == "text"


def test_the_tool_runner_of_the_library_runs_a_tool(client, model):
    """It begins with a thread, and sends the whole conversation when that is refused."""
    cities: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        cities.append(city)
        return "Sunny, 25 C"

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(
            model=model,
            messages=[{"role": "user", "content": "What is the weather in Rome?"}],
            max_tokens=200,
            max_iterations=2,
            tools=[get_weather],
            tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
            stream=stream,
        )
        answers = [answer.get_final_message() if stream else answer for answer in runner]
        assert [answer.stop_reason for answer in answers] == ["tool_use", "tool_use"]
    assert len(cities) == 4


def test_a_json_format_is_enforced(client, model):
    """`output_config.format` is a schema."""
    schema = TOOL["input_schema"]
    answer = client.messages.create(
        model=model,
        messages=QUESTION,
        max_tokens=200,
        extra_body={"temperature": 0},
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert list(json.loads(answer.content[0].text)) == ["city"]


def test_the_tokens_of_a_conversation_are_counted(client, model):
    """The number is that of the usage."""
    fields = {"model": model, "messages": QUESTION, "system": [{"type": "text", "text": "Be brief."}]}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(**fields, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_stop_sequence_and_both_limits_are_told_apart(client, model):
    """The limit of the client, and the end of the context, to which a larger limit is reduced."""
    fields = {"model": model, "messages": QUESTION, "extra_body": {"temperature": 0}}
    stopped = client.messages.create(**fields, max_tokens=50, stop_sequences=["3"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "3")
    assert client.messages.create(**fields, max_tokens=3).stop_reason == "max_tokens"
    assert client.messages.create(**fields, max_tokens=8_000).stop_reason == "end_turn"


def test_a_last_message_of_the_assistant_is_continued(client, model):
    """The answer begins after its text."""
    messages = [*QUESTION, {"role": "assistant", "content": "1, 2, 3,"}]
    answer = client.messages.create(model=model, messages=messages, max_tokens=20, extra_body={"temperature": 0})
    assert answer.content[0].text.lstrip().startswith("4")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model": "claude-nine"}, anthropic.NotFoundError, "does not exist"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"tools": [{"type": "x", "name": "f", "input_schema": {}}]}, anthropic.BadRequestError, "tools"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, anthropic.BadRequestError, "tool_choice.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            "reads text only",
        ),
        ({"thinking": {"type": "enabled"}}, anthropic.BadRequestError, "budget_tokens"),
    ],
)
def test_errors_have_the_shape_that_the_library_reads(client, model, fields, error, message):
    """Their type matches the status, and the message names the parameter."""
    body = {"model": model, "messages": QUESTION, "max_tokens": 5} | fields
    with pytest.raises(error, match=message) as raised:
        client.post("/v1/messages", body=body, cast_to=object)
    assert raised.value.body["type"] == "error"
    assert raised.value.body["error"]["type"] in ("not_found_error", "invalid_request_error")
