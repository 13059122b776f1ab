"""The openai library against a real server."""

from __future__ import annotations

import json

import httpx
import openai
import pytest


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


@pytest.fixture
def model(client) -> str:
    return client.models.list().data[0].id


QUESTION = [{"role": "user", "content": "Count from 1 to 8."}]


def test_the_model_is_listed_and_found_by_id(client, model):
    """Names come from the server, and an unknown one raises NotFoundError."""
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError, match="gpt-nine"):
        client.models.retrieve("gpt-nine")


def test_a_streamed_chat_equals_the_unstreamed_one(client, model):
    """The same seed gives the same text both ways, with one usage, a role and a finish reason."""
    fields = {"model": model, "messages": QUESTION, "max_tokens": 40, "temperature": 0.8, "seed": 7}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole.choices[0].message.content
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
    assert {c.id for c in chunks} == {chunks[0].id}
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_an_answer_is_accepted_unchanged_as_history(client, model):
    """Both the library's message object and the JSON of other clients, with all its nulls, are accepted."""
    first = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=20).choices[0].message
    nulls = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    for message in (first, {"role": "assistant", "content": first.content, **nulls}):
        history = [*QUESTION, message, {"role": "user", "content": "Thank you!"}]
        assert client.chat.completions.create(model=model, messages=history, max_tokens=20).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match=r"unsupported parameter: messages\.1\.function_call"):
        message = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
        client.chat.completions.create(model=model, messages=[*QUESTION, message])


def test_several_choices_of_one_prompt_come_interleaved(client, model):
    """Three texts have different indices, and the first one equals that of n=1."""
    fields = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 1.0, "seed": 3}
    single = client.chat.completions.create(**fields).choices[0].message.content
    three = client.chat.completions.create(**fields, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.choices[0].message.content == single
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**fields, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in three.choices]


@pytest.mark.parametrize("content", ["{text}", [{"type": "text", "text": "{text}"}], "another text"])
def test_a_prediction_changes_no_text_and_is_counted(client, model, content):
    """Both ways have the counts in the last usage; an answer without a prediction has none."""
    fields = {"model": model, "messages": QUESTION, "max_tokens": 60, "temperature": 0.0}
    plain = client.chat.completions.create(**fields)
    text = plain.choices[0].message.content
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens is None
    content = json.loads(json.dumps(content).replace("{text}", text))
    fields["prediction"] = {"type": "content", "content": content}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert whole.choices[0].message.content == text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    for usage in (whole.usage, chunks[-1].usage):
        details = usage.completion_tokens_details
        assert 0 <= details.accepted_prediction_tokens < usage.completion_tokens == plain.usage.completion_tokens
        assert details.rejected_prediction_tokens >= 0


def test_stop_strings_end_a_text_and_are_not_emitted(client, model):
    """A stop string that spans tokens is found, and the emitted text ends before it."""
    fields = {"model": model, "messages": QUESTION, "max_tokens": 60, "temperature": 0.0}
    text = client.chat.completions.create(**fields).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    chunks = list(client.chat.completions.create(**fields, stop=[stop], stream=True))
    shown = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert shown == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_come_with_alternatives(client, model):
    """With greedy sampling the chosen token is the first alternative, and the bytes add up to the text."""
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens or answer.choices[0].finish_reason == "stop"
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob <= 0
    text = answer.choices[0].message.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode().startswith(text)


@pytest.mark.parametrize("logprobs", [0, 2])
def test_a_completion_s_tokens_are_among_their_alternatives(client, model, logprobs: int):
    """This includes unlikely tokens, since clients look them up there."""
    fields = {"model": model, "prompt": "The fox", "max_tokens": 20, "temperature": 1.8, "seed": 3}
    found = client.completions.create(**fields, logprobs=logprobs).choices[0].logprobs
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == logprob and logprobs <= len(top) <= logprobs + 1


def test_a_completion_takes_text_or_ids(client, model):
    """The same prompt as text and as token ids gives the same answer."""
    ids = client.post("../tokenize", body={"prompt": "One two three"}, cast_to=dict[str, object])["tokens"]
    fields = {"model": model, "max_tokens": 8, "temperature": 0}
    by_text = client.completions.create(prompt="One two three", **fields)
    by_ids = client.completions.create(prompt=ids, **fields)
    assert by_text.choices[0].text == by_ids.choices[0].text
    streamed = client.completions.create(prompt="One two three", stream=True, **fields)
    assert "".join(chunk.choices[0].text for chunk in streamed) == by_text.choices[0].text


def test_the_response_has_the_service_tier(client, model):
    """`flex` is batch work, and `priority` is interactive."""
    for tier in ("flex", "priority", "default"):
        answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1, service_tier=tier)
        assert answer.service_tier == tier


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "gpt-nine"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "clown", "content": "x"}]}, openai.BadRequestError, "messages"),
        ({"temperature": -0.1}, openai.BadRequestError, "temperature"),
        ({"temperature": 1e308}, openai.BadRequestError, "temperature"),
        ({"top_p": 0}, openai.BadRequestError, "top_p"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": "5"}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 1.5}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 10**9}, openai.BadRequestError, "max_tokens"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"n": 10**9}, openai.BadRequestError, "n"),
        ({"stop": ""}, openai.BadRequestError, "stop"),
        ({"stop": list("abcde")}, openai.BadRequestError, "stop"),
        ({"logit_bias": {"99999999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
        ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, openai.BadRequestError, "tools"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, openai.BadRequestError, "response_format"),
        ({"extra_body": {"min_tokens": 9, "max_tokens": 3}}, openai.BadRequestError, "min_tokens"),
        ({"extra_body": {"bananas": 3}}, openai.BadRequestError, "bananas"),
        ({"extra_body": {"seed": 2**64}}, openai.BadRequestError, "seed"),
        ({"prediction": {"type": "text", "content": "1"}}, openai.BadRequestError, "prediction"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(client, model, change, error, param):
    """The library raises its own class, and the error names the parameter."""
    fields = {"model": model, "messages": QUESTION, "max_tokens": 4} | change
    with pytest.raises(error) as raised:
        client.chat.completions.create(**fields)
    assert raised.value.param == param
    assert raised.value.body["message"]


def test_a_prompt_beyond_the_context_has_its_own_code(client, model):
    """Clients look for this code."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=model, prompt=[5] * 100_000, max_tokens=1)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "frequency_penalty": 0.5, "ignore_eos": True},  # tokens without text at the end
        {"temperature": 0, "logit_bias": {"175": 100}, "ignore_eos": True},  # bytes that form no characters
        {"seed": 2753838718124293734, "presence_penalty": -2, "stop": ["\n", "fox", ". ", " and"]},  # held back
    ],
)
def test_a_token_s_offset_is_its_position_in_the_text(server, fields: dict):
    """Offsets never decrease and stay within the text."""
    body = {"prompt": "The fox", "max_tokens": 15, "logprobs": 0, **fields}
    whole = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]
    offsets = whole["logprobs"]["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(whole["text"])
    streamed: list[int] = []
    for line in httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}).text.splitlines():
        if line.startswith("data: {") and (found := json.loads(line[6:])["choices"][0]["logprobs"]):
            streamed += found["text_offset"]
    assert streamed == offsets
