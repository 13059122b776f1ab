"""Fields and items of realtime sessions, as clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import ApiError
from app.protocols.conversation import Conversation
from app.protocols.realtime import EventRefused, ItemCreate, SessionUpdate, parse_event
from app.protocols.realtime_fields import ResponseFields, SessionFields, read_change, tools_of
from app.protocols.realtime_items import MAX_ITEMS, ConversationItem, turns
from app.protocols.schema import validate
from app.protocols.tools import MAX_TOOLS

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
MCP = {"type": "mcp", "server_label": "docs", "server_url": "https://example.org"}

# First updates of voice frameworks, with their defaults.
AGENTS = {
    "type": "realtime",
    "instructions": "Be brief.",
    "model": "demo",
    "output_modalities": ["audio"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "noise_reduction": None,
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "turn_detection": {"type": "semantic_vad"},
        },
        "output": {"format": {"type": "audio/pcm", "rate": 24000}, "speed": 1},
    },
    "tools": [TOOL],
}
LIVEKIT = {
    "type": "realtime",
    "model": "demo",
    "output_modalities": ["text"],
    "audio": {"input": {"turn_detection": None}, "output": {"voice": "marin", "speed": 1.0}},
    "max_output_tokens": "inf",
    "tool_choice": "auto",
    "tracing": None,
}
BETA = {
    "modalities": ["text", "audio"],
    "voice": "alloy",
    "input_audio_format": "pcm16",
    "output_audio_format": "pcm16",
    "input_audio_transcription": {"model": "whisper-1"},
    "turn_detection": {"type": "server_vad", "threshold": 0.5},
    "max_response_output_tokens": 64,
    "temperature": 0.8,
    "speed": 1.2,
    "tracing": "auto",
    "include": ["item.input_audio_transcription.logprobs"],
    "prompt": {"id": "pmpt_1"},
    "input_audio_noise_reduction": {"type": "near_field"},
}


def view(*updates: dict[str, Any]) -> dict[str, Any]:
    """Return a session's fields after valid updates."""
    fields = SessionFields()
    for update in updates:
        change = read_change(update)
        assert change.error is None, change.error
        fields = fields.model_copy(update=change.values)
    return fields.view()


@pytest.mark.parametrize("update", [AGENTS, LIVEKIT, BETA])
def test_the_first_update_of_a_voice_framework_is_applied(update: dict[str, Any]):
    """Fields for audio have no effect, which the answer states."""
    fields = view(update)
    assert (fields["output_modalities"], fields["audio"], fields["tracing"]) == (["text"], None, None)
    assert fields["instructions"] == update.get("instructions", "")
    assert [tool["name"] for tool in fields["tools"]] == [tool["name"] for tool in update.get("tools", [])]


def test_names_of_the_beta_protocol_set_the_same_fields():
    """The newer update wins, under either name."""
    assert view(BETA)["max_output_tokens"] == 64 and view(BETA)["temperature"] == 0.8
    assert view(BETA, {"max_output_tokens": 5})["max_output_tokens"] == 5
    assert view({"max_output_tokens": 5}, BETA)["max_output_tokens"] == 64
    assert view(BETA, {"max_output_tokens": None})["max_output_tokens"] == "inf"


@pytest.mark.parametrize(
    ("wrong", "param", "code", "text"),
    [
        ({"bananas": 1}, "session.bananas", "unsupported_parameter", "bananas"),
        ({"temperature": "hot"}, "session.temperature", "invalid_value", "valid number"),
        ({"max_output_tokens": 0}, "session.max_output_tokens", "invalid_value", "greater than or equal to 1"),
        ({"output_modalities": ["video"]}, "session.output_modalities.0", "invalid_value", "'text' or 'audio'"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "session.tools.0", "unsupported_parameter", "only function"),
        ({"tools": [TOOL, TOOL]}, "session.tools[1].name", "invalid_value", "an earlier tool"),
        ({"tool_choice": "any"}, "session.tool_choice", "invalid_value", "'auto', 'none' or 'required'"),
        ({"type": "transcription"}, "session.type", "invalid_value", "realtime"),
    ],
)
def test_a_wrong_field_is_named_and_the_others_are_applied(wrong, param: str, code: str, text: str):
    """Clients send all settings in one update."""
    change = read_change({"instructions": "Be brief.", **wrong})
    assert change.values == {"instructions": "Be brief."}
    assert change.error is not None and (change.error.param, change.error.code) == (param, code)
    assert text in str(change.error) and "the other fields of this update are in force" in str(change.error)
    alone = read_change(wrong)
    assert alone.values == {} and "in force" not in str(alone.error)


def test_one_error_names_all_wrong_fields_of_an_update():
    """Of unknown ones, only the first: a megabyte of them has many."""
    change = read_change({"seed": -1, "top_p": 7, **{f"k{number}": 1 for number in range(50_000)}})
    assert change.error is not None and change.error.param == "session.top_p"
    assert "also refused: session.seed, session.k0" in str(change.error)
    assert len(str(change.error)) < 200


def test_tools_of_other_servers_are_left_out_and_named():
    """A choice that requires one of them is refused."""
    fields = view({"tools": [MCP, TOOL]})
    assert fields["ignored_tools"] == ("mcp",) and [tool["type"] for tool in fields["tools"]] == ["function"]
    session = SessionFields().model_copy(update=read_change({"tools": [MCP]}).values)
    assert tools_of(ResponseFields(), session) is None
    with pytest.raises(
        ApiError, match=r"response\.tool_choice requires a call, but this server does not run"
    ) as refused:
        tools_of(ResponseFields(tool_choice="required"), session)
    assert refused.value.param == "response.tool_choice"


def test_the_fields_of_a_response_replace_those_of_the_session():
    """Each by itself: a response may choose among the session's tools."""
    session = SessionFields().model_copy(update=read_change({"tools": [TOOL], "tool_choice": "none"}).values)
    assert tools_of(ResponseFields(), session) is not None and tools_of(ResponseFields(), session).choice == "none"
    chosen = tools_of(validate(ResponseFields, {"tool_choice": {"type": "function", "name": "get_weather"}}), session)
    assert (chosen.choice, chosen.name) == ("required", "get_weather")
    assert tools_of(validate(ResponseFields, {"tools": []}), session) is None
    with pytest.raises(ApiError, match=r"response\.tool_choice\.name: no tool in tools has the name 'b'"):
        tools_of(validate(ResponseFields, {"tool_choice": {"type": "function", "name": "b"}}), session)


@pytest.mark.parametrize(
    ("event", "code", "param", "text"),
    [
        ({"type": "input_audio_buffer.append", "audio": "AA=="}, "unsupported_event", "type", "text only"),
        ({"type": "input_audio_buffer.commit"}, "unsupported_event", "type", "conversation.item.create"),
        ({"type": "transcription_session.update"}, "unsupported_event", "type", "text only"),
        ({"type": "session.sing"}, "unknown_event", "type", "'session.sing'"),
        ({"type": "session.update", "session": []}, "invalid_value", "session", "object"),
        (
            {"type": "conversation.item.create", "item": {"type": "mcp_call"}},
            "unsupported_parameter",
            "item",
            "only message, function_call, function_call_output",
        ),
        (
            {"type": "conversation.item.create", "item": {"type": "item_reference", "id": "a"}},
            "unsupported_parameter",
            "item",
            "item_reference",
        ),
        (
            {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f", "arguments": "{}"}},
            "invalid_value",
            "item.call_id",
            "Field required",
        ),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "function_call_output", "call_id": "c" * 129, "output": ""},
            },
            "invalid_value",
            "item.call_id",
            "at most 128 characters",
        ),
        (
            {"type": "conversation.item.truncate", "item_id": "a", "content_index": 1, "audio_end_ms": 5},
            "invalid_value",
            "content_index",
            "Input should be 0",
        ),
        (
            {"type": "response.create", "response": {"tools": [TOOL] * (MAX_TOOLS + 1)}},
            "invalid_value",
            "response.tools",
            f"at most {MAX_TOOLS} items",
        ),
        (
            {
                "type": "response.create",
                "response": {"input": [{"type": "item_reference", "id": "a"}] * (MAX_ITEMS + 1)},
            },
            "invalid_value",
            "response.input",
            f"at most {MAX_ITEMS} items",
        ),
    ],
)
def test_a_refused_event_is_named_with_its_limit(event: dict[str, Any], code: str, param: str, text: str):
    """The error states what is served instead, where that is known."""
    with pytest.raises(EventRefused) as refused:
        parse_event(json.dumps({"event_id": "e1", **event}))
    assert (refused.value.error.code, refused.value.error.param) == (code, param)
    assert text in str(refused.value.error) and refused.value.event_id == "e1"


def test_unknown_fields_of_items_are_ignored_as_clients_send_items_back():
    """Fields of an update are not, because they are settings."""
    item = {"type": "function_call", "object": "realtime.item", "call_id": "c", "name": "f", "arguments": "{}", "x": 1}
    event = parse_event(json.dumps({"type": "conversation.item.create", "item": item}))
    assert isinstance(event, ItemCreate) and event.item.item("i").view()["arguments"] == "{}"
    event = parse_event(json.dumps({"type": "session.update", "session": {"x": 1}}))
    assert isinstance(event, SessionUpdate) and event.session.error is not None


def call(item_id: str, call_id: str, arguments: str = '{"city": "Rome"}', **fields) -> ConversationItem:
    return ConversationItem(item_id, "function_call", arguments, call_id=call_id, name="get_weather", **fields)


def output(item_id: str, call_id: str, text: str = "18 degrees") -> ConversationItem:
    return ConversationItem(item_id, "function_call_output", text, call_id=call_id)


def test_calls_and_their_outputs_are_turns_of_the_conversation():
    """Text and calls of one answer are one turn, as templates expect."""
    items = [
        ConversationItem("i0", text="Weather?", role="user"),
        ConversationItem("i1", text="I look."),
        call("i2", "c1"),
        call("i3", "c2", '{"city": "Oslo"}'),
        output("i4", "c2", "4 degrees"),
        output("i5", "c1"),
        ConversationItem("i6", text=""),
    ]
    found = turns(items, "Be brief.")
    assert [turn["role"] for turn in found] == ["system", "user", "assistant", "tool", "tool"]
    assert found[2]["content"] == "I look."
    assert [each["function"]["arguments"]["city"] for each in found[2]["tool_calls"]] == ["Rome", "Oslo"]
    assert [turn["content"] for turn in found[3:]] == ["4 degrees", "18 degrees"]


@pytest.mark.parametrize(
    "items",
    [
        [output("i1", "c1"), call("i2", "c1")],
        [call("i1", "c1"), output("i2", "c1"), output("i3", "c1")],
        [call("i1", "c1", status="incomplete"), output("i2", "c1")],
    ],
)
def test_an_output_without_its_call_before_it_is_named(items: list[ConversationItem]):
    """Items can be deleted and inserted anywhere, so this is known only when the conversation is read."""
    with pytest.raises(ApiError, match=r"the item 'i[123]' is the output of the call 'c1'") as refused:
        turns(items, None)
    assert refused.value.code == "function_call_not_found"


def test_an_output_of_an_unknown_call_is_refused():
    """It is known once its call is in the conversation, and no longer once that is deleted."""
    conversation = Conversation()
    with pytest.raises(ApiError, match=r"no function_call with the call_id 'c1'"):
        conversation.create(output("i2", "c1"))
    conversation.create(call("i1", "c1"))
    conversation.create(output("i2", "c1"))
    conversation.delete("i1")
    with pytest.raises(ApiError, match=r"no function_call with the call_id 'c1'"):
        conversation.create(output("i3", "c1"))


@pytest.mark.parametrize("kind", ["message", "function_call"])
def test_the_size_of_a_conversation_is_bounded_for_all_items(monkeypatch: pytest.MonkeyPatch, kind: str):
    """Texts, names and ids count, and a deleted item makes room."""
    monkeypatch.setattr("app.protocols.conversation.MAX_CHARACTERS", 100)
    conversation = Conversation()
    large = ConversationItem("a", kind, "x" * 50, name="n" * 30, call_id="c" * 20)
    conversation.create(large)
    with pytest.raises(ApiError) as refused:
        conversation.create(ConversationItem("b", text="x"))
    assert refused.value.code == "conversation_full"
    conversation.delete("a")
    conversation.create(large)
