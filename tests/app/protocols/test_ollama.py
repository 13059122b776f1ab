"""Ollama's protocol: conversion of requests, encoding of logs, and its routes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.errors import ApiError
from app.generation.request import AnswerHead, ChatPrompt
from app.protocols.ollama import OllamaChatRequest, OllamaGenerateRequest
from app.protocols.ollama_encoder import ChatLines, GenerateLines, OllamaEncoder
from app.protocols.schema import validate
from app.routes.ollama import REFUSED
from app.streams.stream_log import (
    ChoiceFinished,
    ChoiceStarted,
    Delta,
    Failure,
    LogEntry,
    Record,
    StreamLog,
    ToolCallPiece,
    Usage,
)
from tests.app.routes.test_http import make, ready
from tests.app.text_models import MODEL

RECORDS: list[Record] = [
    ChoiceStarted(0),
    Delta(0, "", 1, reasoning="Hm"),
    Delta(0, "A", 1),
    Delta(0, "", 1, calls=(ToolCallPiece(0, id="c1", name="f"),)),
    Delta(0, "", 1, calls=(ToolCallPiece(0, '{"x": '),)),
    Delta(0, "", 1, calls=(ToolCallPiece(0, "1}"), ToolCallPiece(1, "{}", "c2", "g"))),
    Delta(0, "end", 1),
    ChoiceFinished(0, "tool_calls"),
    Usage(10, 7, 4, {"queued": 1.0, "prefill": 2.0, "decode": 3.0}),
]
CALLS = [
    {"id": "c1", "function": {"name": "f", "arguments": {"x": 1}}},
    {"id": "c2", "function": {"name": "g", "arguments": {}}},
]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
HI = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> OllamaChatRequest:
    return validate(OllamaChatRequest, {"model": "fake", "messages": HI} | fields)


def encoder(kind: type[OllamaEncoder] = ChatLines) -> OllamaEncoder:
    return kind(AnswerHead("fake", "default", MODEL, 10), name="fake:latest")


def make_log(records: list[Record]) -> StreamLog:
    log = StreamLog("a1", "e", "")
    for record in records:
        log.append(record)
    return log


def lines(log: StreamLog, reader: OllamaEncoder, after: int = 0, size: int = 1) -> list[dict[str, Any]]:
    """Return the lines of the records after `after`, encoded `size` at a time."""
    items = [LogEntry(seq, record) for seq, record in enumerate(log.records, 1)][after:]
    sent = b"".join(reader.encode(log, items[at : at + size]) for at in range(0, len(items), size))
    return [json.loads(line) for line in sent.splitlines()]


def test_a_call_is_one_line_when_it_is_complete():
    sent = lines(make_log(RECORDS), encoder())
    messages = [line["message"] for line in sent]
    assert messages[:2] == [
        {"role": "assistant", "content": "", "thinking": "Hm"},
        {"role": "assistant", "content": "A"},
    ]
    assert [call for message in messages for call in message.get("tool_calls", ())] == CALLS
    assert [line["done"] for line in sent] == [False] * (len(sent) - 1) + [True]
    assert {line["model"] for line in sent} == {"fake:latest"}


def test_the_last_line_has_the_numbers_of_tokens_and_the_times():
    last = lines(make_log(RECORDS), encoder(GenerateLines))[-1]
    assert (last["response"], last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("", "stop", 10, 7)
    assert (last["total_duration"], last["prompt_eval_duration"], last["eval_duration"]) == (
        6_000_000,
        2_000_000,
        3_000_000,
    )


@given(st.integers(0, len(RECORDS)), st.integers(1, len(RECORDS)))
def test_a_record_gives_the_same_lines_whenever_it_is_read(after: int, size: int):
    """A reader may begin after any record, and gets the lines of the others."""
    log, shared = make_log(RECORDS), encoder()
    whole = lines(log, shared.for_reader(resumes=False))
    rest = lines(log, shared.for_reader(resumes=True), after, size)
    assert rest == whole[len(whole) - len(rest) :]
    head = make_log(RECORDS[:after]) if after < len(RECORDS) else log
    head.created = log.created
    assert len(rest) + len(lines(head, shared.for_reader(resumes=False))) == len(whole)


def test_a_whole_answer_has_the_text_of_the_lines():
    body = encoder().body(make_log(RECORDS), 1)
    assert body["message"] == {"role": "assistant", "content": "Aend", "thinking": "Hm", "tool_calls": CALLS}
    assert body["done"] is True


def test_a_call_that_was_cut_is_left_out():
    """Clients would run it with the arguments that it has."""
    log = make_log([Delta(0, "", 1, calls=(ToolCallPiece(0, '{"x": ', "c1", "f"),)), ChoiceFinished(0, "length")])
    assert lines(log, encoder()) == []
    assert "tool_calls" not in encoder().body(log, 1)["message"]


def test_a_failure_is_a_line_with_an_error():
    assert lines(make_log([Failure("gone", "engine_died", None)]), encoder()) == [{"error": "gone"}]


def test_results_belong_to_the_first_open_call_of_their_tool():
    """Ollama's calls have no ids, and templates of other models want them."""
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    messages = [
        *HI,
        {"role": "assistant", "tool_calls": [call, {"function": {"name": "clock"}}, call]},
        {"role": "tool", "tool_name": "clock", "content": "noon"},
        {"role": "tool", "tool_name": "weather", "content": "warm"},
        {"role": "tool", "content": "cold"},
    ]
    prompt = chat(messages=messages).generation_request().prompt
    assert isinstance(prompt, ChatPrompt)
    ids = [call["id"] for call in prompt.turns[1]["tool_calls"]]
    assert prompt.turns[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert [turn["tool_call_id"] for turn in prompt.turns[2:]] == [ids[1], ids[0], ids[2]]
    assert [turn["name"] for turn in prompt.turns[2:]] == ["clock", "weather", "weather"]


def test_options_are_the_engines_parameters():
    options = {"num_predict": 5, "repeat_penalty": 1.1, "seed": -1, "top_k": 3, "stop": "x", "num_ctx": 2048}
    request = chat(options=options).generation_request()
    assert (request.max_tokens, request.stop, request.model) == (5, ("x",), "fake")
    expected = {"top_k": 3, "repetition_penalty": 1.1, "seed": 2**64 - 1, "logprobs": None}
    assert request.sampling == expected
    assert chat(options={"num_predict": -1}).generation_request().max_tokens is None


@pytest.mark.parametrize(
    ("think", "variables"),
    [
        (True, {"enable_thinking": True, "thinking": True}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("low", {"reasoning_effort": "low"}),
        (None, None),
    ],
)
def test_think_sets_the_variables_of_the_template(think: bool | str | None, variables: dict[str, Any] | None):
    prompt = chat(think=think).generation_request().prompt
    assert isinstance(prompt, ChatPrompt) and prompt.variables == variables


@pytest.mark.parametrize("form", ["json", {"type": "object"}])
def test_a_format_is_a_schema(form: str | dict[str, Any]):
    content = chat(format=form).generation_request().content_format
    assert content is not None and content.value == {"type": "object"}
    assert chat(format="").generation_request().content_format is None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"nonsense": 1}}, "options.nonsense"),
        ({"options": {"temperature": 9.0}}, "options.temperature"),
        ({"format": "xml"}, "format"),
        ({"think": "much"}, "think"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]}, "images"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"truncate": True}, "truncate"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], where: str):
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.status == 400 and where in str(refused.value)


def test_a_raw_prompt_has_no_template():
    request = validate(OllamaGenerateRequest, {"model": "fake", "prompt": "One", "raw": True}).generation_request()
    assert request.prompt == "One"
    templated = validate(OllamaGenerateRequest, {"model": "fake", "prompt": "One", "system": "S"}).generation_request()
    assert isinstance(templated.prompt, ChatPrompt)
    assert [turn["role"] for turn in templated.prompt.turns] == ["system", "user"]


def test_answers_are_streamed_as_lines_unless_asked_otherwise():
    body = {"model": "fake:latest", "prompt": "ab", "raw": True, "options": {"num_predict": 3, "seed": 1}}
    with make() as client:
        ready(client)
        streamed = client.post("/api/generate", json=body)
        whole = client.post("/api/generate", json={**body, "stream": False})
    assert streamed.headers["content-type"] == "application/x-ndjson"
    parts = [json.loads(line) for line in streamed.text.splitlines()]
    assert "".join(part["response"] for part in parts) == whole.json()["response"]
    assert parts[-1]["eval_count"] == whole.json()["eval_count"] == 3
    assert parts[-1]["done_reason"] == "length"


def test_a_request_without_text_only_loads_the_model():
    with make() as client:
        ready(client)
        loaded = client.post("/api/chat", json={"model": "fake", "messages": []}).json()
        unloaded = client.post("/api/generate", json={"model": "fake", "keep_alive": 0}).json()
        unknown = client.post("/api/generate", json={"model": "other"})
    assert (loaded["done_reason"], loaded["message"]["content"]) == ("load", "")
    assert (unloaded["done_reason"], unloaded["response"]) == ("unload", "")
    assert unknown.status_code == 404 and "other" in unknown.json()["error"]


def test_the_served_model_is_listed_and_described():
    with make() as client:
        ready(client)
        [listed] = client.get("/api/tags").json()["models"]
        [loaded] = client.get("/api/ps").json()["models"]
        shown = client.post("/api/show", json={"model": "fake:latest"}).json()
    assert listed["name"] == loaded["model"] == "fake"
    assert shown["capabilities"][0] == "completion"
    assert shown["model_info"]["general.parameter_count"] >= 0


def test_the_quantisation_that_the_engine_reports_is_shown_everywhere():
    """By Ollama's routes and by /v1/models; the engine's description is the only source."""
    with make() as client:
        ready(client)
        engines = client.app.state.service.client
        fields = {"format": "gguf", "family": "qwen3", "quantization": "Q4_K_M", "file_bytes": 7}
        assert engines.difference(0, replace(engines.model, **fields, parameters=8_190_000_000)) == ""
        [listed] = client.get("/api/tags").json()["models"]
        [loaded] = client.get("/api/ps").json()["models"]
        shown = client.post("/api/show", json={"model": "fake"}).json()
        [model] = client.get("/v1/models").json()["data"]
    assert listed["details"] == loaded["details"] == shown["details"]
    assert shown["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "qwen3",
        "families": ["qwen3"],
        "parameter_size": "8.2B",
        "quantization_level": "Q4_K_M",
    }
    assert listed["size"] == 7
    assert shown["model_info"]["qwen3.context_length"] > 0 and shown["model_info"]["general.architecture"] == "qwen3"
    given = {name: model[name] for name in ("format", "family", "parameters", "quantization")}
    assert given == {"format": "gguf", "family": "qwen3", "parameters": 8_190_000_000, "quantization": "Q4_K_M"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_changes_of_models_are_refused_by_name(name: str):
    path = "/api/blobs/sha256:0" if name == "blobs" else f"/api/{name}"
    with make() as client:
        refused = client.request("DELETE" if name == "delete" else "POST", path, json={})
    assert refused.status_code == 501 and f"/api/{name}" in refused.json()["error"]


def test_errors_are_plain_texts():
    with make() as client:
        assert client.get("/api/nothing").json().keys() == {"error"}
        assert client.get("/api/chat").status_code == 405
