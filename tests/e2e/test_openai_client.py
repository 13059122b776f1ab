"""The openai library against a real server."""

from __future__ import annotations

import json

import httpx
import openai
import pytest


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def model(client) -> str:
    return client.models.list().data[0].id


QUESTION = [{"role": "user", "content": "Count from 1 to 8."}]


def test_it_lists_the_model_and_finds_it_by_id(client, model):
    """Names come from the server; an unknown one is NotFoundError."""
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError, match="gpt-nine"):
        client.models.retrieve("gpt-nine")


def test_a_streamed_chat_is_the_unstreamed_chat(client, model):
    """The same seed gives the same text both ways, with usage once, and a role, and a finish reason."""
    asked = {"model": model, "messages": QUESTION, "max_tokens": 40, "temperature": 0.8, "seed": 7}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole.choices[0].message.content
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
    assert {c.id for c in chunks} == {chunks[0].id}
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_an_answer_goes_back_as_history_just_as_it_came(client, model):
    """The library's own message object, and the JSON other clients keep, with all their nulls."""
    first = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=20).choices[0].message
    nulls = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    for said in (first, {"role": "assistant", "content": first.content, **nulls}):
        history = [*QUESTION, said, {"role": "user", "content": "Thank you!"}]
        assert client.chat.completions.create(model=model, messages=history, max_tokens=20).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match=r"unsupported parameter: messages\.1\.function_call"):
        said = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
        client.chat.completions.create(model=model, messages=[*QUESTION, said])


def test_several_choices_of_one_prompt_come_interleaved(client, model):
    """n=3: three texts, told apart by index, the first of them what n=1 gives."""
    asked = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 1.0, "seed": 3}
    single = client.chat.completions.create(**asked).choices[0].message.content
    three = client.chat.completions.create(**asked, n=3)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.choices[0].message.content == single
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in three.choices]


def test_stop_strings_end_a_text_and_are_not_shown(client, model):
    """A stop string that lies across tokens is found, and what is shown ends before it."""
    asked = {"model": model, "messages": QUESTION, "max_tokens": 60, "temperature": 0.0}
    text = client.chat.completions.create(**asked).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    chunks = list(client.chat.completions.create(**asked, stop=[stop], stream=True))
    shown = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert shown == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_come_with_alternatives(client, model):
    """Greedy: the chosen token is the first alternative; bytes add up to the text."""
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
    """However unlikely: clients look them up there."""
    asked = {"model": model, "prompt": "The fox", "max_tokens": 20, "temperature": 1.8, "seed": 3}
    found = client.completions.create(**asked, logprobs=logprobs).choices[0].logprobs
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == logprob and logprobs <= len(top) <= logprobs + 1


def test_a_completion_takes_text_or_ids(client, model):
    """The same prompt as text and as token ids gives the same answer."""
    ids = client.post("../tokenize", body={"prompt": "One two three"}, cast_to=dict[str, object])["tokens"]
    asked = {"model": model, "max_tokens": 8, "temperature": 0}
    by_text = client.completions.create(prompt="One two three", **asked)
    by_ids = client.completions.create(prompt=ids, **asked)
    assert by_text.choices[0].text == by_ids.choices[0].text
    streamed = client.completions.create(prompt="One two three", stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in streamed) == by_text.choices[0].text


def test_the_tier_that_was_used_is_told(client, model):
    """`flex` is batch work, `priority` is interactive."""
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
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"extra_body": {"min_tokens": 9, "max_tokens": 3}}, openai.BadRequestError, "min_tokens"),
        ({"extra_body": {"bananas": 3}}, openai.BadRequestError, "bananas"),
        ({"extra_body": {"seed": 2**64}}, openai.BadRequestError, "seed"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(client, model, change, error, param):
    """The library raises its own class, and the error names the parameter."""
    asked = {"model": model, "messages": QUESTION, "max_tokens": 4} | change
    with pytest.raises(error) as raised:
        client.chat.completions.create(**asked)
    assert raised.value.param == param
    assert raised.value.body["message"]


def test_a_prompt_beyond_the_context_is_told_apart(client, model):
    """The code is the one that clients look for."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=model, prompt=[5] * 100_000, max_tokens=1)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0, "frequency_penalty": 0.5, "ignore_eos": True},  # tokens that show nothing at the end
        {"temperature": 0, "logit_bias": {"175": 100}, "ignore_eos": True},  # bytes that make no characters
        {"seed": 2753838718124293734, "presence_penalty": -2, "stop": ["\n", "fox", ". ", " and"]},  # text held back
    ],
)
def test_a_token_s_offset_is_its_place_in_the_text_streamed_or_not(server, asked: dict):
    """It never falls, and stays in the text."""
    body = {"prompt": "The fox", "max_tokens": 15, "logprobs": 0, **asked}
    whole = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]
    offsets = whole["logprobs"]["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(whole["text"])
    streamed: list[int] = []
    for line in httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}).text.splitlines():
        if line.startswith("data: {") and (found := json.loads(line[6:])["choices"][0]["logprobs"]):
            streamed += found["text_offset"]
    assert streamed == offsets
