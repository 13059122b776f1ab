"""Conversations as clients keep them: media that the model cannot read, and fields of other servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import ApiError
from app.protocols.anthropic import MessagesRequest
from app.protocols.chat import ChatRequest
from app.protocols.media import KINDS, MAX_DETAIL_CHARACTERS, placeholder
from app.protocols.realtime import ResponseCreate
from app.protocols.responses import ResponsesRequest
from app.protocols.schema import MAX_CONTENT_PARTS, Strict, validate
from app.routes.realtime_session import Session
from tests.app.routes.test_realtime_session import Socket

PNG = "data:image/png;base64,AAAA"
OMITTED = "omitted: this model reads text only]"

# Parts with a medium by protocol, each with the text that replaces it.
CHAT_PARTS = [
    ({"type": "image_url", "image_url": {"url": PNG}}, f"[image {OMITTED}".replace("omitted", "omitted (image/png)")),
    ({"type": "image_url", "image_url": {"url": "https://a.example/b"}}, f"[image {OMITTED}"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "[audio omitted (wav): this model"),
    ({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}}, "(a.pdf, applic"),
    ({"type": "video_url", "video_url": {"url": "x"}}, f"[video {OMITTED}"),
]
RESPONSES_PARTS = [
    ({"type": "input_image", "image_url": PNG}, "[image omitted (image/png): this model"),
    ({"type": "input_image", "file_id": "f", "detail": "auto"}, f"[image {OMITTED}"),
    ({"type": "input_file", "filename": "a.pdf", "file_data": "AA"}, "[file omitted (a.pdf): this model"),
]
ANTHROPIC_PARTS = [
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}, "(image/png)"),
    ({"type": "document", "title": "A [b]", "source": {"type": "url", "url": "x"}}, "[document omitted (A b): this"),
    ({"type": "container_upload", "file_id": "f"}, f"[file {OMITTED}"),
]
REALTIME_PARTS = [
    ({"type": "input_image", "image_url": PNG}, "[image omitted (image/png)"),
    ({"type": "input_audio", "audio": "AAAA"}, f"[audio {OMITTED}"),
]


def chat(*messages: dict) -> Any:
    return validate(ChatRequest, {"messages": [*messages]}).prompt.turns


def responses(*items: dict) -> Any:
    return validate(ResponsesRequest, {"input": [*items]}).chat_prompt.turns


def anthropic(*messages: dict) -> Any:
    return validate(MessagesRequest, {"max_tokens": 5, "messages": [*messages]}).prompt.turns


def message(role: str, content: Any, **fields) -> dict:
    return {"role": role, "content": content, **fields}


def chat_result(content: list[dict]) -> list[dict]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [message("assistant", None, tool_calls=[call]), message("tool", content, tool_call_id="c")]


def responses_result(content: list[dict]) -> list[dict]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "c", "output": content}]


def anthropic_result(content: list[dict]) -> list[dict]:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    return [
        message("assistant", [call]),
        message("user", [{"type": "tool_result", "tool_use_id": "c", "content": content}]),
    ]


PROTOCOLS = [
    *((chat, chat_result, {"type": "text", "text": "See:"}, *part) for part in CHAT_PARTS),
    *((responses, responses_result, {"type": "input_text", "text": "See:"}, *part) for part in RESPONSES_PARTS),
    *((anthropic, anthropic_result, {"type": "text", "text": "See:"}, *part) for part in ANTHROPIC_PARTS),
]
each_medium = pytest.mark.parametrize(("turns_of", "result", "text", "medium", "replacement"), PROTOCOLS)


@each_medium
def test_a_short_text_replaces_a_medium_in_history(
    turns_of: Callable, result: Callable, text: dict, medium: dict, replacement: str
):
    """Clients send it again with every request, also where it is the result of a tool."""
    question = message("user", [text, medium, text])
    turns = turns_of(question, message("assistant", "A cat."), message("user", "Sure?"))
    first, inserted, last = turns[0]["content"].split("\n")
    assert (first, last) == ("See:", "See:") and replacement in inserted and inserted.endswith("text only]")
    *_, found = turns_of(message("user", "hi"), *result([text, medium]))
    assert found["role"] == "tool" and replacement in found["content"]


@pytest.mark.parametrize(("medium", "replacement"), ANTHROPIC_PARTS)
def test_a_short_text_replaces_a_medium_beside_the_result_of_a_tool(medium: dict, replacement: str):
    """Agents put the page that a tool has read beside its result, in a message of the user."""
    call, result = anthropic_result([{"type": "text", "text": "Read."}])
    result["content"].append(medium)
    *_, found, beside = anthropic(message("user", "hi"), call, result)
    assert found["role"] == "tool" and beside["role"] == "user" and replacement in beside["content"]


@each_medium
def test_a_medium_in_the_newest_message_of_the_user_is_refused_by_name(
    turns_of: Callable, result: Callable, text: dict, medium: dict, replacement: str
):
    """The model would answer without having seen it; messages after that one change nothing."""
    for later in ([], result([text])):
        with pytest.raises(ApiError, match=f"'{medium['type']}' is not supported; this model reads text only") as error:
            turns_of(message("user", "hi"), message("user", [text, medium]), *later)
        assert (error.value.status, error.value.code) == (400, "unsupported_parameter")
        assert "1" in str(error.value).partition(",")[0] and str(error.value.param) in str(error.value)


def test_media_beside_the_content_are_treated_as_parts():
    """Ollama's clients and the AI SDK send them in fields of a message."""
    images = message("user", "See:", images=["AAAA", "BBBB"])
    attached = message("user", "", experimental_attachments=[{"name": "a.png", "contentType": "image/png", "url": PNG}])
    spoken = message("assistant", None, audio={"id": "audio_1"})
    turns = chat(images, attached, spoken, message("user", "And?"))
    assert turns[0]["content"] == f"See:\n[image {OMITTED}\n[image {OMITTED}"
    assert turns[1]["content"] == "[file omitted (a.png, image/png): this model reads text only]"
    assert turns[2]["content"] == f"[audio {OMITTED}"
    for newest, field in ((images, "images"), (attached, "experimental_attachments")):
        with pytest.raises(ApiError, match=rf"messages\.0\.{field}, the type"):
            chat(newest)
    assert chat(message("user", "hi", images=[], audio=None)) == [message("user", "hi")]


def test_a_document_of_plain_text_is_read():
    """Only its form is that of a file."""
    source = {"type": "text", "media_type": "text/plain", "data": "All is well."}
    [turn] = anthropic(message("user", [{"type": "document", "title": "Report", "source": source}]))
    assert turn["content"] == "Report\n\nAll is well.\n"


@pytest.mark.parametrize(("medium", "replacement"), REALTIME_PARTS)
def test_media_in_the_input_of_a_realtime_response_are_treated_the_same(medium: dict, replacement: str):
    """Items of the conversation are history from the next message on, but are refused when a user sends them."""
    item = {"type": "message", "role": "user", "content": [medium]}
    text = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    event = validate(ResponseCreate, {"type": "response.create", "response": {"input": [item, text]}})
    assert replacement in event.response.input[0].text


@pytest.mark.parametrize("medium", [medium for medium, _ in REALTIME_PARTS])
@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_a_realtime_message_of_the_user_with_a_medium_is_refused(medium: dict, role: str):
    """The session continues, and other messages are history."""
    socket, pacer = Socket(), SimpleNamespace(wait_turn=socket_turn)
    service = SimpleNamespace(pacer=pacer, check_model=lambda _: None)
    session = Session(service, SimpleNamespace(), socket.send, socket.write)
    item = {"type": "message", "role": role, "content": [medium], "unknown": 1}
    await session.handle_frame(json.dumps({"type": "conversation.item.create", "item": item}))
    if role == "user":
        error = socket.received[0]["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "item.content.0")
        await session.handle_frame(json.dumps({"type": "response.create", "response": {"input": [item]}}))
        assert socket.received[1]["error"]["param"] == "response.input.0.content.0"
    else:
        assert "omitted" in socket.received[0]["item"]["content"][0]["text"]


async def socket_turn() -> None:
    """Wait for no turn."""


def test_a_transcript_replaces_speech():
    """It is all that a text model can know of it."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "transcript": "Hello?"}]}
    text = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    event = validate(ResponseCreate, {"type": "response.create", "response": {"input": [item, text]}})
    assert event.response.input[0].text == "Hello?"


def test_details_of_a_medium_cannot_end_its_placeholder():
    """Names are shortened, and lose line breaks and brackets."""
    text = placeholder("file", {"filename": "a]\n[b" + "x" * 1000, "file_data": "data:;base64,AA"})
    assert text.startswith("[file omitted (abxxx") and text.count("]") == 1 and "\n" not in text
    assert len(text) < 2 * MAX_DETAIL_CHARACTERS
    assert set(KINDS.values()) == {"image", "audio", "video", "document", "file"}


OWN_FIELDS = {
    "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}],
    "id": "msg_1",
    "createdAt": "2026-01-01T00:00:00Z",
    "created_at": 5,
    "timestamp": 1.5,
    "metadata": {"a": {"b": []}},
    "images": [],
    "prefix": True,
    "cache_control": {"type": "ephemeral"},
    "annotations": [{"type": "url_citation"}],
    "audio": None,
    "refusal": None,
    "function_call": None,
    "status": "done",
    "phase": 7,
    "type": "message",
    "experimental_attachments": [],
    "parts": [{"type": "text", "text": "hi"}],
    "toolInvocations": [{"state": "result"}],
    "providerOptions": {},
    "extras": {"replacements": ["x"]},
    **{f"k{number}": number for number in range(100)},
}


@pytest.mark.parametrize(
    ("turns_of", "kind", "result"),
    [(chat, "text", chat_result), (responses, "input_text", responses_result), (anthropic, "text", anthropic_result)],
)
def test_fields_of_other_servers_and_clients_are_ignored_in_messages(turns_of: Callable, kind: str, result: Callable):
    """Clients send their records of a conversation as they are: messages, parts, calls and results."""

    def with_fields(value: Any) -> Any:
        if isinstance(value, list):
            return [with_fields(each) for each in value]
        if not isinstance(value, dict):
            return value
        more = OWN_FIELDS if {"role", "type", "function"} & value.keys() else {}
        return {**more, **{name: with_fields(each) for name, each in value.items()}}

    part = {"type": kind, "text": "hi"}
    history = [message("user", [part]), *result([part]), message("assistant", "Yes."), message("user", "And?")]
    assert turns_of(*with_fields(history)) == turns_of(*history)


def test_the_reasoning_of_other_servers_reaches_the_template():
    """Some call it `reasoning`; a value that is no text is ignored."""
    for value, expected in (("Hm", {"reasoning_content": "Hm"}), ({"effort": "low"}, {}), (None, {})):
        answer = message("assistant", "Yes.", reasoning=value)
        assert chat(answer, message("user", "a"))[0] == message("assistant", "Yes.") | expected
    both = message("assistant", "Yes.", reasoning="Hm", reasoning_content="Hm?")
    assert chat(both, message("user", "a"))[0]["reasoning_content"] == "Hm?"


def test_a_refusal_is_the_text_of_an_answer_without_another():
    """OpenAI's answers have it beside a content of null, or as a part."""
    for answer in (
        message("assistant", None, refusal="No."),
        message("assistant", [{"type": "refusal", "refusal": "No."}]),
    ):
        assert chat(answer, message("user", "a"))[0] == message("assistant", "No.")


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (message("assistant", "I", prefix=True), r"messages\.1\.prefix; use continue_final_message: true"),
        (message("assistant", "I", partial=True), r"messages\.1\.partial; use continue_final_message: true"),
        (
            message("assistant", "", function_call={"name": "f", "arguments": "{}"}),
            r"messages\.1\.function_call; use tool_calls",
        ),
    ],
)
def test_a_field_with_an_effect_is_refused_by_name(last: dict, expected: str):
    """The error names the parameter that has the same effect here."""
    with pytest.raises(ApiError, match=f"unsupported parameter: {expected}") as refused:
        chat(message("user", "a"), last)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "messages")


def test_prefix_is_no_fault_where_the_continuation_is_requested():
    """Earlier messages with it were continued by another server."""
    messages = [message("user", "a"), message("assistant", "I", prefix=True)]
    request = {"messages": messages, "continue_final_message": True}
    assert validate(ChatRequest, request).prompt.continue_final_message
    assert len(chat(*messages, message("user", "b"))) == 3


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (ChatRequest, {"messages": [message("user", [{"type": "image_url"}] * 4000)] * 2 + [message("user", "a")]}),
        (ChatRequest, {"messages": [message("user", "", images=["x"] * 5000), message("user", "a")]}),
        (ResponsesRequest, {"input": [message("user", [{"type": "input_image"}] * 4000)] * 2}),
        (MessagesRequest, {"max_tokens": 1, "messages": [message("user", [{"type": "image"}] * 4097)]}),
    ],
)
def test_media_count_as_content_parts(schema: type[Strict], body: dict):
    """Their limit is that of all parts, whether they are read or replaced."""
    with pytest.raises(ApiError, match=f"at most {MAX_CONTENT_PARTS}"):
        validate(schema, body)
