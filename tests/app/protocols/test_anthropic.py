"""Anthropic's protocol: conversion of requests, and encoding of logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ApiError
from app.generation.request import AnswerHead
from app.protocols.anthropic import MessagesRequest
from app.protocols.anthropic_encoder import AnthropicEncoder, _Blocks
from app.protocols.schema import validate
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
from tests.app.text_models import MODEL


def request(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}
    return validate(MessagesRequest, body | fields)


RECORDS: list[Record] = [
    ChoiceStarted(0),
    Delta(0, "", 1, reasoning="Hm"),
    Delta(0, "A", 1, reasoning="."),
    Delta(0, " b", 1),
    Delta(0, "", 1, calls=(ToolCallPiece(0, id="c1", name="f"),)),
    Delta(0, "", 1, calls=(ToolCallPiece(0, '{"x": '),)),
    Delta(0, "", 1, calls=(ToolCallPiece(0, "1}"), ToolCallPiece(1, "{}", "c2", "g"))),
    Delta(0, "end", 1),
    ChoiceFinished(0, "tool_calls"),
    Usage(10, 7, 4),
]


def make_log(records: list[Record]) -> StreamLog:
    log = StreamLog("a1", "e", "")
    for record in records:
        log.append(record)
    return log


def encoder(**options: Any) -> AnthropicEncoder:
    return AnthropicEncoder(AnswerHead("m", "default", MODEL, 10), **options)


def events(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named by its type."""
    found = []
    for block in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append(json.loads(lines["data"]))
            assert found[-1]["type"] == lines["event"]
    return found


def encoded(log: StreamLog, made: AnthropicEncoder, first: int = 1) -> list[bytes]:
    """Return the bytes of each record from `first` on."""
    return [made.encode(log, [LogEntry(seq, log.records[seq - 1])]) for seq in range(first, len(log.records) + 1)]


def joined(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the content blocks that a client makes of the events."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in stream:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(blocks)
                blocks.append(dict(block))
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert index == len(blocks) - 1
                match delta:
                    case {"type": "input_json_delta", "partial_json": text}:
                        inputs[index] = inputs.get(index, "") + text
                    case {"text": text}:
                        blocks[index]["text"] += text
                    case {"thinking": text}:
                        blocks[index]["thinking"] += text
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks


def test_streamed_and_whole_messages_have_the_same_content():
    """Thinking, text and tools in the order of generation; usage and reason at the end."""
    log = make_log(RECORDS)
    made = encoder().for_reader(resumes=False)
    stream = events(made.opening(log) + b"".join(encoded(log, made)))
    assert [event["type"] for event in stream[:2]] == ["message_start", "ping"]
    body = encoder().body(log, 1)
    assert joined(stream) == body["content"]
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert body["content"][2]["input"] == {"x": 1}
    assert stream[-2]["delta"]["stop_reason"] == body["stop_reason"] == "tool_use"
    assert stream[-2]["usage"] == body["usage"]
    assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (6, 4)
    starts = [event["index"] for event in stream if event["type"] == "content_block_start"]
    assert starts == [event["index"] for event in stream if event["type"] == "content_block_stop"]


@given(st.integers(1, len(RECORDS)))
def test_a_reader_that_resumes_receives_the_same_bytes(first: int):
    """Whatever it has read before; ids name the position after each record."""
    log = make_log(RECORDS)
    whole = encoded(log, encoder())
    assert encoded(log, encoder(), first) == whole[first - 1 :]
    assert b"id: a1.e.4\n" in whole[3]


def test_readers_that_alternate_have_states_of_their_own(monkeypatch: pytest.MonkeyPatch):
    """No record is read again to restore the state of the other reader."""
    log = make_log(RECORDS)
    made = encoder()
    monkeypatch.setattr(_Blocks, "advance", None)
    readers = [made.for_reader(resumes=True) for _ in range(2)]
    streams: list[list[bytes]] = [[], []]
    for number, record in enumerate(log.records, 1):
        for reader, parts in zip(readers, streams, strict=True):
            parts.append(reader.encode(log, [LogEntry(number, record)]))
    assert streams[0] == streams[1]


def test_thinking_is_left_out_on_request():
    """Its block is empty, streamed or whole."""
    log = make_log(RECORDS)
    made = encoder(hides_thinking=True)
    assert joined(events(b"".join(encoded(log, made))))[0]["thinking"] == ""
    assert made.body(log, 1)["content"][0]["thinking"] == ""


@pytest.mark.parametrize(
    ("finish", "is_clipped", "reason", "sequence"),
    [
        (ChoiceFinished(0, "stop"), False, "end_turn", None),
        (ChoiceFinished(0, "stop", "END"), False, "stop_sequence", "END"),
        (ChoiceFinished(0, "length"), False, "max_tokens", None),
        (ChoiceFinished(0, "length"), True, "model_context_window_exceeded", None),
        (ChoiceFinished(0, "tool_calls"), True, "tool_use", None),
        (ChoiceFinished(0, "abort"), False, "end_turn", None),
    ],
)
def test_the_reason_for_the_end(finish: ChoiceFinished, is_clipped: bool, reason: str, sequence: str | None):
    """A limit that was reduced to the context's room is told apart from the client's."""
    log = make_log([ChoiceStarted(0), Delta(0, "a", 1), finish, Usage(1, 1, 0)])
    body = encoder(is_clipped=is_clipped).body(log, 1)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


def test_a_call_that_was_cut_is_left_out_of_a_whole_message():
    """Any object is a complete input, which clients would run."""
    for arguments in ('{"city": "Ro', '{"days": 12', ""):
        call = ToolCallPiece(0, arguments, "c", "f")
        log = make_log([ChoiceStarted(0), Delta(0, "", 1, calls=(call,)), ChoiceFinished(0, "length"), Usage(1, 1, 0)])
        body = encoder().body(log, 1)
        assert (body["content"], body["stop_reason"]) == ([], "max_tokens")


def test_a_failure_is_an_event_and_an_error():
    """Streamed it has Anthropic's shape."""
    log = make_log([ChoiceStarted(0), Failure("It broke.", "engine_unavailable", None)])
    [event] = events(b"".join(encoded(log, encoder())))
    assert event == {"type": "error", "error": {"type": "overloaded_error", "message": "It broke."}}
    with pytest.raises(ApiError, match="It broke"):
        encoder().body(log, 1)


def test_messages_become_turns():
    """Results of tools are turns of their own, and reasoning and calls belong to the assistant's turn."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": " Two."}]},
        {"role": "user", "content": "Three."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True},
                {"type": "text", "text": "So?"},
            ],
        },
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "It"},
    ]
    made = request(messages=messages, system=[{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]).prompt
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert made.turns == [
        {"role": "system", "content": "S\n\nT"},
        {"role": "user", "content": "One. Two.\n\nThree."},
        {"role": "assistant", "content": "Wait.", "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Error: no", "name": "f"},
        {"role": "user", "content": "So?"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "It"},
    ]
    assert made.continue_final_message


SEARCH = [{"type": "tool_reference", "tool_name": "b"}, {"type": "text", "text": "One of 3."}]
TOOLS: list[dict[str, Any]] = [
    {"name": "search", "input_schema": {}},
    *[{"name": name, "input_schema": {}, "defer_loading": True} for name in "abc"],
]


def with_result(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation with a call of `search`, of `c`, and this result."""
    calls = [{"type": "tool_use", "id": name, "name": name, "input": {}} for name in ("search", "c")]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "search", "content": content}]},
    ]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["search"]),
        ({"messages": with_result(SEARCH)}, ["search", "b", "c"]),
        ({"tool_choice": {"type": "tool", "name": "a"}}, ["search", "a"]),
    ],
)
def test_the_model_sees_deferred_tools_once_they_are_loaded(fields: dict[str, Any], names: list[str]):
    """A reference in a result loads a tool, a call in an earlier answer shows that it was, and so does a choice."""
    prompt = request(tools=TOOLS, **fields).prompt
    assert prompt.tools is not None
    assert [tool.name for tool in prompt.tools.tools] == names
    if "messages" in fields:
        assert prompt.turns[-1]["content"] == "The tool b is loaded and can be called.\nOne of 3."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": TOOLS[1:]}, "tools: at least one tool must not have defer_loading"),
        (
            {"tools": TOOLS, "messages": with_result([{"type": "tool_reference", "tool_name": "d"}])},
            "messages.2.content.0: no tool in tools has the name 'd'",
        ),
    ],
)
def test_deferred_tools_that_cannot_be_loaded_are_refused(fields: dict[str, Any], message: str):
    """Without a tool that loads others, and for a reference to a tool that is not in tools."""
    with pytest.raises(ApiError, match=message):
        request(**fields)


@pytest.mark.parametrize(
    ("fields", "variables", "budget"),
    [
        ({}, None, None),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True, "thinking": True}, None),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}, None),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"enable_thinking": True, "thinking": True},
            1024,
        ),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}, None),
    ],
)
def test_thinking_and_effort_are_variables_of_the_template(fields: dict, variables: dict | None, budget: int | None):
    """A budget limits the tokens of reasoning."""
    made = request(**fields).generation_request()
    assert made.prompt.variables == variables  # type: ignore[union-attr]
    assert made.thinking_budget == budget
