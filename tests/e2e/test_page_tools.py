"""Tool calls in the chat page: definitions, calls as they stream, results that the user writes, and their storage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from app.protocols.chat import ChatRequest
from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, Chat, answer_with, begin_with, call_delta, delta, reasoning_delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
CALLED: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
LENGTH: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length"}]}
WEATHER = call_delta(0, '{"city": "Ghent"}', id="a", name="get_weather")
LAID_OUT = '{\n  "city": "Ghent"\n}'


def ask(chat: Chat, *parts: str | dict[str, Any]) -> Locator:
    """Send a message that is answered with `parts`, and return the tool calls of the answer."""
    answer_with(chat.page, *parts, DONE)
    chat.send("What is the weather?")
    chat.wait_done()
    return chat.answers.last.locator(".call")


def sent_by(chat: Chat, button: str) -> dict[str, Any]:
    """Press a button of the last answer and return the request that it sends."""
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.answers.last.get_by_role("button", name=button).click()
    return dict(sent.value.post_data_json)


def open_tools(chat: Chat) -> Locator:
    """Open the tools of the settings and return the field of the definitions."""
    chat.page.locator("#settings-open").click()
    field = chat.page.locator("#settings [name=tools]")
    if not field.is_visible():
        chat.page.locator("#settings .fold summary").click()
    return field


@pytest.mark.model
def test_the_model_calls_a_tool_and_answers_with_the_result(chat_server: Server, new_page: Callable[..., Page]) -> None:
    """The server gets a definition, its call gets a result, and the conversation goes on."""
    chat = Chat(new_page(), chat_server.url).open()
    city = {"type": "object", "properties": {"city": {"enum": ["Ghent"]}}, "required": ["city"]}
    open_tools(chat).fill(json.dumps({"name": "get_weather", "parameters": {**city, "additionalProperties": False}}))
    chat.page.get_by_label("Require a call for each message").check()
    chat.page.keyboard.press("Escape")
    chat.set_field("temperature", "0")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("What is the weather in Ghent?")
    assert sent.value.post_data_json["tools"][0]["function"]["name"] == "get_weather"
    assert sent.value.post_data_json["tool_choice"] == "required"
    chat.wait_done()
    call = chat.answers.last.locator(".call").first
    expect(call.locator(".call-name")).to_have_text("get_weather")
    expect(call.locator(".call-state")).to_have_text("called")
    arguments = json.loads(call.locator("code").last.inner_text())
    assert arguments == {"city": "Ghent"}
    for field in chat.answers.last.get_by_label("Result of").all():
        field.fill("18 degrees")
    body = sent_by(chat, "Send result")
    assert [message["role"] for message in body["messages"][:3]] == ["user", "assistant", "tool"]
    [first, *_] = body["messages"][1]["tool_calls"]
    assert json.loads(first["function"]["arguments"]) == arguments
    assert body["messages"][2] == {"role": "tool", "content": "18 degrees", "tool_call_id": first["id"]}
    assert "tool_choice" not in body
    expect(chat.answers).to_have_count(2)
    expect(chat.answers.last).to_have_attribute("aria-busy", "false", timeout=ANSWER_MS)
    expect(chat.answers.last.locator(".trouble")).to_be_hidden()


def test_arguments_are_laid_out_as_they_arrive(chat: Chat) -> None:
    """The reasoning is folded when a call begins, and each call has its state."""
    begin_with(
        chat.page,
        reasoning_delta("I need the weather."),
        WEATHER,
        call_delta(1, '{"words": ["o', id="b", name="find"),
        call_delta(1, "ne"),
    )
    chat.send("What is the weather?")
    calls = chat.answers.last.locator(".call")
    expect(calls.locator(".call-name")).to_have_text(["get_weather", "find"])
    expect(calls.locator(".call-state")).to_have_text(["called", "calling"])
    expect(calls.first.locator("pre")).to_have_text(LAID_OUT, use_inner_text=True)
    expect(calls.last.locator("pre")).to_have_text('{\n  "words": [\n    "one', use_inner_text=True)
    expect(chat.status).to_have_text("Calling a tool")
    reasoning = chat.answers.last.locator(".reasoning")
    expect(reasoning.locator("summary")).to_contain_text("Thought for")
    expect(reasoning.locator("p")).to_be_hidden()
    expect(chat.page.get_by_role("button", name="Send result")).to_have_count(0)


def test_reasoning_is_shown_as_thinking_while_it_arrives(chat: Chat) -> None:
    """Its block is unfolded until the answer begins."""
    begin_with(chat.page, reasoning_delta("Two and two"))
    chat.send("How much?")
    reasoning = chat.answers.last.locator(".reasoning")
    expect(reasoning.locator("summary")).to_have_text("Thinking")
    expect(reasoning.locator("p")).to_be_visible()


def test_calls_and_results_are_stored(chat: Chat) -> None:
    """After a reload an answered call is folded and shows its result; the request of the result had the reasoning."""
    ask(chat, reasoning_delta("I need the weather."), WEATHER, CALLED)
    chat.page.get_by_label("Result of get_weather").fill('{"sky":"clear"}')
    answer_with(chat.page, delta("Clear."), DONE)
    body = sent_by(chat, "Send result")
    assert body["messages"][1]["reasoning_content"] == "I need the weather."
    chat.wait_done()
    chat.reload()
    call = chat.answers.first.locator(".call")
    expect(call.locator(".call-state")).to_have_text("answered")
    expect(call.locator("pre").first).to_be_hidden()
    call.locator("summary").click()
    expect(call.locator("pre")).to_have_text([LAID_OUT, '{\n  "sky": "clear"\n}'], use_inner_text=True)
    expect(chat.answers.last).to_contain_text("Clear.")


def test_each_call_needs_a_result(chat: Chat) -> None:
    """An empty field gets the focus, also in a folded block, and nothing is sent; a draft survives a reload."""
    calls = ask(chat, WEATHER, call_delta(1, "{}", id="b", name="find"), CALLED)
    chat.page.get_by_label("Result of get_weather").fill("clear")
    chat.reload()
    expect(chat.page.get_by_label("Result of get_weather")).to_have_value("clear")
    calls.last.locator("summary").click()
    chat.page.get_by_role("button", name="Send results").click()
    expect(chat.page.get_by_label("Result of find")).to_be_focused()
    expect(chat.answers).to_have_count(1)
    chat.page.get_by_label("Result of find").fill("nothing")
    answer_with(chat.page, delta("Clear."), DONE)
    body = sent_by(chat, "Send results")
    results = [(message["tool_call_id"], message["content"]) for message in body["messages"][2:]]
    assert results == [("a", "clear"), ("b", "nothing")]


def test_a_call_without_a_result_is_not_sent(chat: Chat) -> None:
    """A message may be written instead of the result; then the fields disappear."""
    ask(chat, delta("I will look."), WEATHER, CALLED)
    answer_with(chat.page, delta("Yes."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Never mind")
    assert [message["content"] for message in sent.value.post_data_json["messages"]] == [
        "What is the weather?",
        "I will look.",
        "Never mind",
    ]
    assert all("tool_calls" not in message for message in sent.value.post_data_json["messages"])
    chat.wait_done()
    expect(chat.page.get_by_label("Result of get_weather")).to_be_hidden()
    expect(chat.page.get_by_role("button", name="Send result")).to_be_hidden()


def test_a_queued_message_returns_to_the_box_after_a_call(chat: Chat) -> None:
    """The result comes first."""
    chat.page.evaluate(
        """() => {
        const fetch = window.fetch;
        const start = (sink) => (window.sink = sink);
        window.fetch = async (url, init) => !String(url).endsWith("/v1/chat/completions") ? fetch(url, init)
            : new Response(new ReadableStream({ start }), { headers: { "x-carousel-stream": "s" } });
    }"""
    )
    chat.send("What is the weather?")
    chat.page.wait_for_function("() => window.sink")
    chat.send("And tomorrow?")
    expect(chat.page.locator("#queued")).to_be_visible()
    text = "".join(f"data: {json.dumps(part)}\n\n" for part in (WEATHER, CALLED)) + "data: [DONE]\n\n"
    chat.page.evaluate("(text) => sink.enqueue(new TextEncoder().encode(text))", text)
    chat.wait_done()
    expect(chat.prompt).to_have_value("And tomorrow?")
    expect(chat.questions).to_have_count(1)


def test_a_cut_call_is_neither_answered_nor_continued(chat: Chat) -> None:
    """Only another answer is offered, since the server cannot continue inside of a call."""
    calls = ask(chat, delta("I will look."), call_delta(0, '{"city": "Gh', id="a", name="get_weather"), LENGTH)
    expect(calls.locator(".call-state")).to_have_text("cut off")
    expect(chat.answers.last.get_by_role("button", name="Continue")).to_be_hidden()
    expect(chat.page.get_by_role("button", name="Send result")).to_be_hidden()
    expect(chat.answers.last.get_by_role("button", name="Answer again")).to_be_visible()


def test_complete_calls_of_a_cut_answer_can_be_answered(chat: Chat) -> None:
    """The call that was cut needs no result and is not sent."""
    calls = ask(chat, WEATHER, call_delta(1, '{"wo', id="b", name="find"), LENGTH)
    expect(calls.locator(".call-state")).to_have_text(["called", "cut off"])
    expect(chat.page.get_by_label("Result of find")).to_be_hidden()
    expect(chat.page.get_by_role("button", name="Send result", exact=True)).to_be_visible()
    chat.page.get_by_label("Result of get_weather").fill("clear")
    answer_with(chat.page, delta("Clear."), DONE)
    body = sent_by(chat, "Send result")
    assert [call["id"] for call in body["messages"][1]["tool_calls"]] == ["a"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]


def test_an_example_can_be_inserted(chat: Chat) -> None:
    """It is a valid definition, and is in force at once."""
    field = open_tools(chat)
    chat.page.get_by_role("button", name="Insert an example").click()
    expect(field).to_be_focused()
    example = json.loads(field.input_value())
    chat.page.keyboard.press("Escape")
    answer_with(chat.page, delta("Yes."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("What is the weather?")
    assert sent.value.post_data_json["tools"] == example
    ChatRequest.model_validate(sent.value.post_data_json)


def test_an_answer_cut_inside_its_reasoning_continues_there(chat: Chat) -> None:
    """The server gets the open block, and its text is added to the shown reasoning."""
    ask(chat, reasoning_delta("Two and"), LENGTH)
    answer_with(chat.page, reasoning_delta(" two"), delta("Four."), DONE)
    body = sent_by(chat, "Continue")
    assert body["messages"][-1] == {"role": "assistant", "content": "<think>\nTwo and"}
    assert body["continue_final_message"] is True
    expect(chat.text()).to_have_text("Four.")
    expect(chat.answers).to_have_count(1)
    expect(chat.answers.last.locator(".reasoning .prose")).to_have_text("Two and two")


def test_the_time_of_reasoning_has_no_pause_before_it_continues(chat: Chat) -> None:
    """The seconds go on from those before the cut."""
    chat.page.clock.install()
    begin_with(chat.page, reasoning_delta("Two and"))
    chat.send("How much?")
    expect(chat.answers.last.locator(".reasoning")).to_contain_text("Two and")
    chat.stop.click()
    chat.page.clock.fast_forward(100_000)
    begin_with(chat.page, reasoning_delta(" two"))
    chat.answers.last.get_by_role("button", name="Continue").click()
    expect(chat.answers.last.locator(".reasoning")).to_contain_text("Two and two")
    expect(chat.answers.last.locator(".wait")).to_have_text(re.compile(r"Thinking \(\d s\)"))


def test_hostile_names_arguments_and_results_are_text(chat: Chat) -> None:
    """No element is made of them."""
    markup = '<img src="x" onerror="document.title = 1">'
    calls = ask(chat, call_delta(0, json.dumps({markup: markup}), id="a", name=markup), CALLED)
    expect(calls.locator(".call-name")).to_have_text(markup)
    chat.page.get_by_label("Result of").fill(markup)
    answer_with(chat.page, delta("Yes."), DONE)
    sent_by(chat, "Send result")
    chat.wait_done()
    calls = chat.answers.first.locator(".call")
    expect(calls.locator("pre").last).to_have_text(markup)
    expect(chat.page.locator("#thread img")).to_have_count(0)


def test_definitions_are_checked_and_kept(chat: Chat) -> None:
    """A wrong definition is explained and not used; valid ones are completed, sent, and used for new conversations."""
    field = open_tools(chat)
    field.fill('[{"name": "find", "parameters": {}}]')
    error = chat.page.locator("#error-tools")
    for wrong, reason in (('[{"name": ', "JSON"), ('[{"parameters": {}}]', "Tool 1 has no name"), ("7", "no name")):
        field.fill(wrong)
        expect(error).to_contain_text(reason)
        expect(field).to_have_attribute("aria-invalid", "true")
    chat.page.get_by_role("button", name="Use for new conversations").click()
    chat.page.locator("#new").click()
    answer_with(chat.page, delta("Yes."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Find it")
    assert sent.value.post_data_json["tools"] == [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    chat.wait_done()
    expect(open_tools(chat)).to_have_value(json.dumps(sent.value.post_data_json["tools"], indent=2))
    chat.page.get_by_role("button", name="Reset all").click()
    chat.page.keyboard.press("Escape")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Again")
    assert "tools" not in sent.value.post_data_json


def test_a_result_of_another_tab_is_shown(chat: Chat) -> None:
    """Both tabs show the same state of the call, and the answer that follows."""
    ask(chat, WEATHER, CALLED)
    other = Chat(chat.page.context.new_page(), chat.url)
    other.page.goto(chat.page.url)
    expect(other.answers.last.locator(".call-state")).to_have_text("called")
    chat.page.get_by_label("Result of get_weather").fill("clear")
    answer_with(chat.page, delta("Clear."), DONE)
    sent_by(chat, "Send result")
    expect(other.answers.first.locator(".call-state")).to_have_text("answered")
    expect(other.text()).to_have_text("Clear.")


def test_calls_are_exported_and_found(chat: Chat, tmp_path: Path) -> None:
    """Both forms of the export have arguments and results, and the search finds them."""
    ask(chat, WEATHER, CALLED)
    chat.page.get_by_label("Result of get_weather").fill("```clear```")
    answer_with(chat.page, delta("It is so."), DONE)
    sent_by(chat, "Send result")
    chat.wait_done()
    texts = {}
    for form in ("Markdown", "JSON"):
        chat.page.locator("#more").click()
        with chat.page.expect_download() as saved:
            chat.page.get_by_role("menuitem", name=f"Export as {form}").click()
        saved.value.save_as(tmp_path / form)
        texts[form] = (tmp_path / form).read_text()
    assert f"### Call of `get_weather`\n\n```\n{LAID_OUT}\n```" in texts["Markdown"]
    assert "### Result\n\n````\n```clear```\n````" in texts["Markdown"]
    call = {"id": "a", "name": "get_weather", "arguments": '{"city": "Ghent"}', "result": "```clear```"}
    assert json.loads(texts["JSON"])["conversations"][0]["messages"][1]["calls"] == [call]
    for word, rows in (("ghent", 1), ("```clear", 1), ("zebra", 0)):
        chat.page.locator("#search").fill(word)
        expect(chat.rows).to_have_count(rows)
