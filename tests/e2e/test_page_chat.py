"""The chat page in a real browser against the real server: user actions and their results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, SHORT, Chat, answer_with, begin_with, delta, is_question, reasoning_delta, sse
from tests.profiles import nightly

pytestmark = pytest.mark.browser


def test_an_answer_streams_and_ends_with_its_figures(chat: Chat) -> None:
    """A question is shown at once, its answer grows, and time to first token and tokens are shown."""
    chat.send("Tell me a story about a fox")
    expect(chat.questions.last).to_contain_text("story about a fox")
    chat.wait_started()
    chat.wait_done()
    expect(chat.answers.last.locator(".figures")).to_contain_text("to first token")
    expect(chat.answers.last.locator(".figures")).to_contain_text("token")
    expect(chat.stop).to_be_hidden()
    expect(chat.prompt).to_be_empty()


def test_status_is_announced_but_tokens_are_not(chat: Chat) -> None:
    """A screen reader announces only changes of state, since the messages are no live region."""
    chat.send("Tell me a story about a fox")
    expect(chat.status).to_have_text("Answering", timeout=ANSWER_MS)
    chat.wait_done()
    expect(chat.status).to_have_text("Done")
    expect(chat.status).to_have_attribute("aria-live", "polite")
    assert chat.page.locator("#thread [aria-live], #thread [role=log]").count() == 0


def test_stop_keeps_the_text_and_frees_the_stream(chat: Chat) -> None:
    """Stop ends the answer in the page and on the server."""
    chat.send_long()
    chat.wait_started()
    with chat.page.expect_request(lambda request: request.method == "DELETE" and "/v1/streams/" in request.url):
        chat.stop.click()
    chat.wait_done()
    expect(chat.answers.last.locator(".figures")).to_contain_text("stopped")
    expect(chat.text()).not_to_be_empty()
    expect(chat.status).to_have_text("Stopped")


def test_escape_stops(chat: Chat) -> None:
    """Esc does the same as the stop button."""
    chat.send_long()
    chat.wait_started()
    chat.page.keyboard.press("Escape")
    chat.wait_done()
    expect(chat.answers.last.locator(".figures")).to_contain_text("stopped")


def test_answer_again_adds_a_version(chat: Chat) -> None:
    """The newest answer to the question is shown, and the first one is its other version."""
    chat.send("Tell me a story about a fox")
    chat.wait_done()
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.answers.last.get_by_role("button", name="Answer again").click()
    assert [turn["role"] for turn in sent.value.post_data_json["messages"]] == ["user"]
    chat.wait_done()
    expect(chat.answers).to_have_count(1)
    expect(chat.questions).to_have_count(1)
    expect(chat.answers.get_by_role("group", name="Version 2 of 2")).to_be_visible()


def test_an_edited_question_begins_another_branch(chat: Chat) -> None:
    """Editing the first of two questions shows one question and one answer."""
    for text in ("Tell me a story about a fox", "And one about an owl"):
        chat.send(text)
        chat.wait_done()
    chat.questions.first.hover()
    chat.questions.first.get_by_role("button", name="Edit and send again").click()
    box = chat.questions.first.get_by_role("textbox")
    box.fill("Tell me a story about a frog")
    box.press("Enter")
    expect(chat.questions).to_have_count(1)
    expect(chat.questions.first).to_contain_text("frog")
    chat.wait_done()
    expect(chat.answers).to_have_count(1)


def test_conversations_survive_a_reload(chat: Chat) -> None:
    """The open conversation is restored with its title, its messages and its place in the list."""
    chat.send("Tell me a story about a fox")
    chat.wait_done()
    before = chat.text().text_content()
    chat.reload()
    chat.page.wait_for_function(
        "(before) => document.querySelector('[data-role=assistant] .body')?.textContent === before", arg=before
    )
    expect(chat.rows).to_have_count(1)
    expect(chat.page.locator("#title")).to_have_text("Tell me a story about a fox")


def test_a_reload_during_an_answer_resumes_it(chat: Chat) -> None:
    """The same stream continues after the last stored event, and no request is repeated."""
    chat.send_long()
    chat.wait_started()
    expect(chat.page.locator("#stop")).to_be_visible()
    chat.wait_saved("content")
    requests: list[str] = []
    chat.page.on("request", lambda request: requests.append(request.url) if is_question(request) else None)
    before = chat.text().text_content() or ""
    with chat.page.expect_request(lambda request: request.method == "GET" and "/v1/streams/" in request.url) as resumed:
        chat.reload()
    assert resumed.value.headers.get("last-event-id")
    length = len(before)
    chat.page.wait_for_function(
        "(kept) => document.querySelector('[data-role=assistant] .body').textContent.length > kept",
        arg=length,
        timeout=ANSWER_MS,
    )
    expect(chat.answers).to_have_count(1)
    expect(chat.answers.last.locator(".trouble")).to_be_hidden()
    assert not requests
    chat.stop.click()
    chat.wait_done()


def test_a_reload_changes_no_figure(chat: Chat) -> None:
    """Time to first token is stored; the token rate comes from the server, since the page did not read for a while."""
    rest = {"completion_tokens": 11, "total_tokens": 14, "time_ms": {"decode": 100.0}}
    end = sse("", "", delta("two"), {"choices": [], "usage": rest}, "id: s.0.4\ndata: [DONE]")
    headers = {"content-type": "text/event-stream"}
    chat.page.route("**/v1/streams/s", lambda route: route.fulfill(status=200, headers=headers, body=end))
    figures = chat.answers.last.locator(".figures span")
    for beginning, field in ((delta("One "), "content"), (": ping", "stream")):
        chat.page.locator("#new").click()
        begin_with(chat.page, beginning)
        chat.send("Count")
        if field == "content":
            expect(figures).to_contain_text(["to first token"])
        known = figures.all_text_contents()
        chat.wait_saved(field)
        chat.reload()
        chat.wait_done()
        expect(figures).to_have_text([*known, "100 tokens/s", "11 tokens"])


def test_a_lost_connection_is_shown_and_the_answer_resumes(chat: Chat) -> None:
    """The page shows the loss, resumes after the last event, and repeats no text."""
    answer_with(chat.page, delta("One "), delta("two "))
    tries = []

    def resume(route: Route) -> None:
        tries.append(route.request.headers.get("last-event-id"))
        if len(tries) == 1:
            return route.abort()
        if len(tries) == 2:  # the proxy is back, and the server behind it is not
            return route.fulfill(status=502, headers={"content-type": "text/html"}, body="<h1>502 Bad Gateway</h1>")
        return route.fulfill(
            status=200,
            headers={"content-type": "text/event-stream"},
            body="id: s.0.1\ndata: "
            + json.dumps(delta("two "))
            + "\n\nid: s.0.2\ndata: "
            + json.dumps(delta("three"))
            + "\n\nid: s.0.3\ndata: [DONE]\n\n",
        )

    chat.page.route("**/v1/streams/s", resume)
    chat.send("Count")
    expect(chat.answers.last.locator(".wait")).to_contain_text("Reconnecting")
    expect(chat.text()).to_have_text("One two three")
    chat.wait_done()
    assert tries == ["s.0.1"] * 3


def test_an_answer_goes_on_when_a_restarted_server_has_restored_it(chat: Chat) -> None:
    """Until then the server refuses its readers, for as long as its model loads."""
    answer_with(chat.page, delta("One "))
    tries = []

    def resume(route: Route) -> None:
        tries.append(route.request.headers.get("last-event-id"))
        if len(tries) < 9:
            error = {"message": "It is being restored.", "type": "x", "param": None, "code": "engine_unavailable"}
            return route.fulfill(status=503, headers={"Retry-After-Ms": "20"}, json={"error": error})
        body = f"id: s.0.1\ndata: {json.dumps(delta('two'))}\n\nid: s.0.2\ndata: [DONE]\n\n"
        return route.fulfill(status=200, headers={"content-type": "text/event-stream"}, body=body)

    chat.page.route("**/v1/streams/s", resume)
    chat.send("Count")
    expect(chat.text()).to_have_text("One two")
    chat.wait_done()
    assert len(tries) == 9


def test_a_gateway_error_means_an_unreachable_server(chat: Chat) -> None:
    """An error page of the proxy is no response of the server, and the question is sent again later."""
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=504, body="upstream timed out"))
    chat.send("Count")
    expect(chat.answers.last.locator(".wait")).to_contain_text("The server cannot be reached")
    answer_with(chat.page, delta("One two."), "id: s.0.9\ndata: [DONE]")
    expect(chat.text()).to_have_text("One two.")
    expect(chat.answers).to_have_count(1)


def test_usage_is_the_end_even_if_done_is_lost(chat: Chat) -> None:
    """Usage and [DONE] are two events with one number, and losing the second one has no effect."""
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
    for last in ("id: s.0.1\ndata: [DONE]", ": ping"):
        chat.page.unroute("**/v1/chat/completions")
        answer_with(chat.page, delta("All of it"), usage, last)
        chat.send("Count")
        chat.wait_done()
        expect(chat.answers.last.locator(".figures")).to_contain_text("2 tokens")
        expect(chat.answers.last.locator(".trouble")).to_be_hidden()


def test_a_lost_stream_is_an_error_that_keeps_the_text(chat: Chat) -> None:
    """On a 410 the text stays, the reason is given in plain words, and the answer can be continued."""
    answer_with(chat.page, delta("Half an"))
    chat.page.route(
        "**/v1/streams/s",
        lambda route: route.fulfill(
            status=410,
            json={
                "error": {
                    "message": "This answer is gone.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "stream_lost",
                }
            },
        ),
    )
    chat.send("Count")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("The server no longer has this answer")
    expect(chat.answers.last.locator(".trouble")).not_to_contain_text("This answer is gone.")
    expect(chat.text()).to_have_text("Half an")
    answer_with(chat.page, delta(" answer."), "id: t.0.9\ndata: [DONE]")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.answers.last.get_by_role("button", name="Continue").click()
    body = sent.value.post_data_json
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["messages"][-1] == {"role": "assistant", "content": "Half an"}
    expect(chat.text()).to_have_text("Half an answer.")
    expect(chat.answers.last.locator(".trouble")).to_be_hidden()
    chat.wait_done()
    chat.reload()
    expect(chat.text()).to_have_text("Half an answer.")


def test_reasoning_is_collapsed(chat: Chat) -> None:
    """It arrives apart from the answer, and is shown above it."""
    deltas = reasoning_delta("Two and"), reasoning_delta(" two"), delta("Four"), delta(".")
    answer_with(chat.page, *deltas, {"choices": [{"delta": {}, "finish_reason": "stop"}]}, "data: [DONE]")
    chat.send("How much?")
    chat.wait_done()
    expect(chat.text()).to_have_text("Four.")
    reasoning = chat.answers.last.locator(".reasoning")
    expect(reasoning.locator("p")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator("p")).to_have_text("Two and two")


def test_a_finished_answer_shows_its_timeline(chat: Chat) -> None:
    """A bar shows its phases; when expanded, also from the keyboard, the icon turns and each interval is listed."""
    chat.send("Hello!")
    chat.wait_done()
    timeline = chat.answers.last.locator(".timeline")
    summary = timeline.locator("summary")
    expect(summary).to_have_attribute(
        "aria-label", re.compile(r"^Where the time went: .*read the prompt \d.*, wrote the answer \d")
    )
    expect(summary.get_by_text("Where the time went")).to_be_visible()
    expect(timeline.locator(".timeline-bar [data-phase=decode]")).to_be_visible()
    icon = summary.locator("svg")
    expect(icon).to_have_css("transform", "none")
    chat.answers.last.get_by_role("button", name="More", exact=True).focus()
    chat.page.keyboard.press("Tab")
    expect(summary).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(icon).to_have_css("transform", re.compile(r"^matrix\("))
    expect(timeline.locator("li").first).to_have_text(re.compile(r"^\d+ of \d+ prompt tokens were in the cache"))
    expect(timeline.locator("li").filter(has_text="read the prompt")).to_have_count(1)
    expect(timeline.locator("li").filter(has_text="wrote the answer")).to_have_count(1)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"state": "queued", "position": 2, "cause": "slots"}, "2nd in line, all slots occupied"),
        (
            {"state": "paused", "by": "interactive", "mechanism": "swap"},
            "Paused for a request of class interactive, it resumes",
        ),
        ({"state": "queued", "cause": "restart"}, "The engine is restarting, no text is lost"),
    ],
)
def test_waiting_shows_the_position_and_the_cause(chat: Chat, status: dict[str, Any], words: str) -> None:
    """The server's status comments are shown as sentences."""
    begin_with(chat.page, f": carousel {json.dumps(status)}")
    chat.send("Hello")
    expect(chat.answers.last.locator(".wait")).to_contain_text(words)


def test_a_place_in_line_has_the_server_s_estimate(chat: Chat) -> None:
    """It is read beside the position, and only while that is shown."""
    chat.page.route("**/v1/requests/s", lambda route: route.fulfill(json={"choices": [], "wait_ms": 12_300}))
    begin_with(chat.page, f": carousel {json.dumps({'state': 'queued', 'position': 3, 'cause': 'slots'})}")
    chat.send("Hello")
    expect(chat.answers.last.locator(".wait")).to_contain_text("3rd in line, all slots occupied; about 12 s")


def test_an_error_is_shown_with_the_server_s_message(chat: Chat) -> None:
    """The error message is shown in the thread with its code and a button to try again."""
    chat.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=400,
            json={
                "error": {
                    "message": "This model is not for you.",
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": "model_refused",
                }
            },
        ),
    )
    chat.send("Please")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("This model is not for you.")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("model_refused")
    chat.page.unroute("**/v1/chat/completions")
    chat.answers.last.get_by_role("button", name="Try again").click()
    chat.wait_started()
    expect(chat.answers).to_have_count(1)


def test_a_throttled_question_counts_down_and_is_sent_again(chat: Chat) -> None:
    """A 429 with Retry-After shows a countdown and then the answer, without a second question."""
    tries = []

    def throttle(route: Route) -> None:
        tries.append(1)
        if len(tries) > 1:
            return route.fallback()
        return route.fulfill(
            status=429,
            headers={"retry-after": "2"},
            json={
                "error": {
                    "message": "Slow down.",
                    "type": "rate_limit_error",
                    "param": None,
                    "code": "rate_limit_exceeded",
                }
            },
        )

    chat.page.route("**/v1/chat/completions", throttle)
    chat.send("Tell me a story about a fox")
    expect(chat.answers.last.locator(".wait")).to_contain_text("Trying again in")
    chat.wait_started()
    assert len(tries) == 2
    chat.wait_done()


def test_a_401_asks_for_the_key_and_sends_it(chat: Chat) -> None:
    """A refused question opens the key dialog; the key is sent as a Bearer token and never stored permanently."""
    keys = []

    def guard(route: Route) -> None:
        keys.append(route.request.headers.get("authorization"))
        if keys[-1] != "Bearer s3cret":
            return route.fulfill(
                status=401,
                json={
                    "error": {
                        "message": "A key, please.",
                        "type": "authentication_error",
                        "param": None,
                        "code": "invalid_api_key",
                    }
                },
            )
        return route.fulfill(
            status=200,
            headers={"content-type": "text/event-stream", "x-carousel-stream": "s"},
            body=sse(delta("Welcome"), "id: s.0.9\ndata: [DONE]"),
        )

    chat.page.route("**/v1/chat/completions", guard)
    chat.send("Hello")
    expect(chat.page.locator("#key-dialog")).to_be_visible()
    chat.page.locator("#key-input").fill("s3cret")
    chat.page.locator("#key-input").press("Enter")
    expect(chat.text()).to_have_text("Welcome")
    assert "s3cret" not in chat.page.evaluate("JSON.stringify(localStorage)")


def test_settings_are_sent_honoured_and_kept_with_the_conversation(chat: Chat) -> None:
    """max_tokens 5 cuts the answer and survives a reload, and a new conversation has its own settings."""
    chat.set_field("max_tokens", "5")
    chat.set_field("temperature", "0.3")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Tell me a story about a fox")
    body = sent.value.post_data_json
    assert (body["max_tokens"], body["temperature"], body["stream"], body["service_tier"]) == (5, 0.3, True, "priority")
    assert "top_p" not in body
    assert sent.value.headers["x-carousel-resume"] == "600"
    chat.wait_done()
    expect(chat.answers.last.locator(".figures")).to_contain_text("5 tokens")
    expect(chat.answers.last.locator(".figures")).to_contain_text("cut at the token limit")
    chat.reload()
    expect(chat.answers).to_have_count(1)
    chat.page.locator("#settings-open").click()
    expect(chat.page.locator("#settings [name=max_tokens]")).to_have_value("5")
    chat.page.keyboard.press("Escape")
    chat.page.locator("#new").click()
    chat.page.locator("#settings-open").click()
    expect(chat.page.locator("#settings [name=max_tokens]")).to_have_value(str(SHORT))


def test_a_value_out_of_range_is_named_and_not_sent(chat: Chat) -> None:
    """A temperature of 9 is refused under its field, and the request is sent without it."""
    chat.page.locator("#settings-open").click()
    chat.page.locator("#settings [name=temperature]").fill("9")
    expect(chat.page.locator("#error-temperature")).to_have_text("At most 2.")
    chat.page.keyboard.press("Escape")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Hello")
    assert "temperature" not in sent.value.post_data_json
    chat.wait_done()


def test_the_system_prompt_leads_the_messages(chat: Chat) -> None:
    """The text of the system prompt is the first message."""
    chat.page.locator("#settings-open").click()
    chat.page.locator("#system-prompt").fill("Be brief.")
    chat.page.keyboard.press("Escape")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Hello")
    assert sent.value.post_data_json["messages"][0] == {"role": "system", "content": "Be brief."}
    chat.wait_done()


def test_conversations_are_found_renamed_deleted_and_restored(chat: Chat) -> None:
    """The list searches titles and text, renames in place, and a deletion can be undone."""
    answer_with(chat.page, delta("Blue whales"), "id: s.0.9\ndata: [DONE]")
    chat.send("First question")
    chat.wait_done()
    chat.page.locator("#new").click()
    expect(chat.page.locator("#empty")).to_be_visible()
    chat.send("Second question")
    chat.wait_done()
    expect(chat.rows).to_have_count(2)
    chat.page.locator("#search").fill("first")
    expect(chat.rows).to_have_count(1)
    chat.page.locator("#search").fill("whales")
    expect(chat.rows).to_have_count(2)
    chat.page.locator("#search").fill("")
    chat.rows.first.hover()
    chat.rows.first.get_by_role("button").click()
    chat.page.get_by_role("menuitem", name="Rename").click()
    chat.page.get_by_role("textbox", name="Title").fill("A better name")
    chat.page.keyboard.press("Enter")
    expect(chat.rows.first).to_contain_text("A better name")
    chat.rows.first.hover()
    chat.rows.first.get_by_role("button").click()
    chat.page.get_by_role("menuitem", name="Delete").click()
    expect(chat.rows).to_have_count(1)
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.rows).to_have_count(2)


@pytest.mark.parametrize(("form", "ending"), [("Markdown", ".md"), ("JSON", ".json")])
def test_a_conversation_can_be_exported(chat: Chat, form: str, ending: str) -> None:
    """The exported file has both sides of the conversation."""
    answer_with(chat.page, delta("Blue **whales**"), "id: s.0.9\ndata: [DONE]")
    chat.send("What sings?")
    chat.wait_done()
    chat.page.locator("#more").click()
    with chat.page.expect_download() as download:
        chat.page.get_by_role("menuitem", name=f"Export as {form}").click()
    assert download.value.suggested_filename == f"what-sings{ending}"
    text = download.value.path().read_text()
    assert "What sings?" in text
    assert "Blue **whales**" in text


def test_a_second_tab_shows_the_growing_answer(chat: Chat) -> None:
    """Another tab of the same browser shows the growing answer and its end, and sends no request."""
    chat.send_long()
    chat.wait_started()
    other = Chat(chat.page.context.new_page(), chat.url)
    requests: list[str] = []
    other.page.on(
        "request",
        lambda request: requests.append(request.url) if "/v1/streams/" in request.url or is_question(request) else None,
    )
    other.page.goto(chat.page.url)
    expect(other.answers).to_have_count(1)
    chat.page.bring_to_front()
    chat.stop.click()
    chat.wait_done()
    expect(other.answers.last.locator(".figures")).to_contain_text("stopped")
    assert not requests


def test_a_tab_does_not_overwrite_the_answer_of_another(chat: Chat) -> None:
    """While it grows, the other tab queues a message, and its Stop button stops the tab that writes, which takes it back."""
    chat.send_long()
    chat.wait_started()
    other = Chat(chat.page.context.new_page(), chat.url)
    other.page.goto(chat.page.url)
    expect(other.stop).to_be_visible()
    other.prompt.fill("And now?")
    other.page.keyboard.press("Enter")
    expect(other.page.locator("#queued")).to_contain_text("And now?")
    expect(other.answers).to_have_count(1)
    other.stop.click()
    chat.wait_done()
    expect(chat.prompt).to_have_value("And now?")
    expect(other.page.locator("#queued")).to_be_hidden()
    chat.page.bring_to_front()
    expect(chat.page.locator("#send")).to_be_visible()
    other.page.bring_to_front()
    expect(other.page.locator("#send")).to_be_visible()
    answer_with(other.page, delta("Now."), "id: s.0.9\ndata: [DONE]")
    other.send("And now?")
    other.wait_done()
    expect(other.answers.last).to_contain_text("Now.")
    expect(chat.answers.last).to_contain_text("Now.")


def test_stop_in_a_second_tab_is_a_stop_in_both(chat: Chat) -> None:
    """Both show the answer as stopped and offer to continue it, and the server ends it."""
    chat.send_long()
    chat.wait_started()
    other = Chat(chat.page.context.new_page(), chat.url)
    other.page.goto(chat.page.url)
    expect(other.stop).to_be_visible()
    with chat.page.expect_request(lambda request: request.method == "DELETE" and "/v1/streams/" in request.url):
        other.stop.click()
    for tab in (other, chat):
        tab.page.bring_to_front()
        tab.wait_done()
        expect(tab.answers.last.locator(".figures")).to_contain_text("stopped")
        expect(tab.answers.last.get_by_role("button", name="Continue")).to_be_visible()
        expect(tab.page.locator("#send")).to_be_visible()


def test_stop_in_a_second_tab_does_not_depend_on_the_first(chat: Chat) -> None:
    """If the tab that writes does not react, the server stops the answer."""
    chat.page.evaluate("BroadcastChannel.prototype.postMessage = () => {}")
    chat.send_long()
    chat.wait_started()
    page = chat.page.context.new_page()
    page.add_init_script("BroadcastChannel.prototype.postMessage = () => {}")
    other = Chat(page, chat.url)
    page.goto(chat.page.url)
    expect(other.stop).to_be_visible()
    with page.expect_request(lambda request: request.method == "DELETE" and "/v1/streams/" in request.url):
        other.stop.click()
    chat.page.bring_to_front()
    chat.wait_done()


# Script that slows down reading, so that an answer grows for seconds however fast the server is: about eight seconds
# with LONG_READ tokens.
LONG_READ = 800
SLOW = """
const read = ReadableStreamDefaultReader.prototype.read, rest = new WeakMap();
ReadableStreamDefaultReader.prototype.read = async function () {
    await new Promise((resolve) => setTimeout(resolve, 200));
    const { done, value } = rest.get(this) ?? await read.call(this);
    rest.delete(this);
    if (value?.length > 4000) rest.set(this, { done, value: value.subarray(4000) });
    return { done, value: value?.subarray(0, 4000) };
};
"""


@pytest.mark.parametrize(
    ("is_watching", "has_locks"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=nightly),
        pytest.param(False, True, marks=nightly),
    ],
)
def test_an_answer_whose_tab_was_closed_is_resumed_by_another(
    slow_server: Server, new_page: Callable[..., Page], has_locks: bool, is_watching: bool
) -> None:
    """The other tab shows the answer already or opens it later, and tabs on plain http have no locks."""
    page = new_page()
    if not has_locks:
        hidden = "Object.defineProperty(Navigator.prototype, 'locks', { get: () => undefined })"
        page.context.add_init_script(hidden)
    other = Chat(page.context.new_page(), slow_server.url).open()
    page.add_init_script(SLOW)
    chat = Chat(page, slow_server.url).open()
    chat.send_long(LONG_READ)
    chat.wait_started()
    if is_watching:
        other.page.goto(page.url)
        expect(other.stop).to_be_visible()
    page.close()
    if not is_watching:
        other.rows.first.get_by_role("link").click()
    expect(other.page.locator("#send")).to_be_visible(timeout=ANSWER_MS)
    expect(other.answers.last.locator(".figures")).to_contain_text("tokens")
    expect(other.answers.last.locator(".trouble")).to_be_hidden()


def test_an_answer_abandoned_long_ago_does_not_block_sending(
    slow_server: Server, new_page: Callable[..., Page]
) -> None:
    page = new_page()
    page.add_init_script(SLOW)
    chat = Chat(page, slow_server.url).open()
    chat.send_long()
    chat.wait_started()
    page.wait_for_timeout(1000)
    page.route("**/v1/models", lambda route: route.abort())
    page.add_init_script("{ const now = Date.now; Date.now = () => now() + 3_600_000; }")
    page.reload()
    expect(chat.answers.last.locator(".trouble")).to_contain_text("closed before")
    expect(page.locator("#send")).to_be_visible()


def test_a_conversation_that_is_full_offers_a_new_one(chat: Chat) -> None:
    """Trying again could not work."""
    error = {"error": {"message": "the prompt has 2067 tokens", "code": "context_length_exceeded", "type": "x"}}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=error))
    chat.send("Once more")
    expect(chat.page.locator(".trouble")).to_contain_text("2067 tokens")
    expect(chat.page.locator(".trouble").get_by_role("button", name="Try again")).to_have_count(0)
    chat.page.locator(".trouble").get_by_role("button", name="New conversation").click()
    expect(chat.answers).to_have_count(0)


def test_a_draft_survives_a_reload(chat: Chat) -> None:
    """Unsent text is kept."""
    chat.prompt.fill("Half a thou")
    chat.reload()
    expect(chat.prompt).to_have_value("Half a thou")


def test_enter_sends_except_with_shift_or_during_a_composition(chat: Chat) -> None:
    """Shift+Enter inserts a line, and Enter during an input method's composition sends nothing."""
    answer_with(chat.page, delta("Yes"), "id: s.0.9\ndata: [DONE]")
    chat.prompt.fill("one")
    chat.prompt.press("Shift+Enter")
    expect(chat.prompt).to_have_value("one\n")
    chat.prompt.evaluate(
        """(box) => box.dispatchEvent(new KeyboardEvent("keydown",
            { key: "Enter", isComposing: true, bubbles: true, cancelable: true }))"""
    )
    expect(chat.questions).to_have_count(0)
    chat.prompt.press("Enter")
    expect(chat.questions).to_have_count(1)


def test_shortcuts(chat: Chat) -> None:
    """Ctrl+K searches, ? shows the help outside of fields, / focuses the message box, Ctrl+Shift+O starts anew."""
    page = chat.page
    page.keyboard.press("Control+k")
    expect(page.locator("#search")).to_be_focused()
    page.locator("#scroller").focus()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.locator("#scroller").focus()
    page.keyboard.press("/")
    expect(chat.prompt).to_be_focused()
    page.keyboard.type("?")
    expect(chat.prompt).to_have_value("?")
    expect(page.locator("#help")).to_be_hidden()
    answer_with(page, delta("Yes"), "id: s.0.9\ndata: [DONE]")
    chat.send("Hello")
    chat.wait_done()
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("#empty")).to_be_visible()


def test_dialogs_trap_the_focus_and_return_it(chat: Chat) -> None:
    """The settings sheet is modal, and closing it returns to the button that opened it."""
    button = chat.page.locator("#settings-open")
    button.focus()
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator("#settings")).to_be_visible()
    assert chat.page.evaluate("document.querySelector('#settings').contains(document.activeElement)")
    chat.page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_the_dark_theme_is_kept(chat: Chat) -> None:
    """The theme menu turns the page dark, and the choice survives a reload."""
    background = "getComputedStyle(document.body).backgroundColor"
    light = chat.page.evaluate(background)
    chat.page.locator("#theme").click()
    chat.page.get_by_role("menuitemradio", name="Dark").click()
    dark = chat.page.evaluate(background)
    assert dark != light
    chat.reload()
    expect(chat.page.locator("html")).to_have_attribute("data-theme", "dark")
    assert chat.page.evaluate(background) == dark


def test_the_page_follows_the_system_preference(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Without a choice, a dark system gets a dark page."""
    dark, light = (Chat(new_page(color_scheme=scheme), slow_server.url).open() for scheme in ("dark", "light"))
    background = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(background) != light.page.evaluate(background)


def test_a_phone_scrolls_vertically_only(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Nothing exceeds the screen at 390 px, the list is a drawer, and no field makes the phone zoom."""
    chat = Chat(
        new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True), slow_server.url
    ).open()
    table = (
        "| a | b | c |\n|--|--|--|\n| " + "wide " * 30 + "| x | y |\n\n```\n" + "long " * 60 + "\n```\n\n" + "x" * 400
    )
    answer_with(chat.page, delta(table), "id: s.0.9\ndata: [DONE]")
    chat.send("w" * 200)
    chat.wait_done()
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert chat.page.evaluate(
        "(node) => node.scrollWidth <= node.clientWidth", chat.page.locator("#scroller").element_handle()
    )
    expect(chat.page.locator("#sidebar")).to_be_hidden()
    chat.page.locator("#drawer-open").click()
    expect(chat.rows.first).to_be_visible()
    expect(chat.page.locator("#drawer-close")).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(chat.page.locator("#sidebar")).to_be_hidden()
    sizes = chat.page.evaluate(
        "[...document.querySelectorAll('textarea, input')].map((node) => parseFloat(getComputedStyle(node).fontSize))"
    )
    assert min(sizes) >= 16


def test_the_smallest_phone_shows_everything(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """The empty page begins at its top at 320 px, and nothing of the drawer or the settings is cut off."""
    chat = Chat(
        new_page(viewport={"width": 320, "height": 568}, has_touch=True, is_mobile=True), slow_server.url
    ).open()
    assert chat.page.evaluate("document.querySelector('#scroller').scrollTop") == 0
    expect(chat.page.locator("#jump")).to_be_hidden()
    outside = """(frame) => {
        const edge = frame.getBoundingClientRect().right;
        return [...frame.querySelectorAll("button, a, input, textarea")]
            .filter((node) => node.getBoundingClientRect().right > edge).map((node) => node.id || node.textContent);
    }"""
    for button, frame in (("#drawer-open", "#sidebar"), ("#settings-open", "#settings")):
        chat.page.locator(button).click()
        chat.page.wait_for_timeout(500)
        assert chat.page.evaluate(outside, chat.page.locator(frame).element_handle()) == []
        chat.page.keyboard.press("Escape")


def test_each_paragraph_has_its_own_direction(chat: Chat) -> None:
    """Right-to-left text begins at the right, in questions and answers, beside left-to-right text."""
    answer_with(chat.page, delta("שלום עולם!\n\nHello!"), "id: s.0.9\ndata: [DONE]")
    chat.send("مرحبا!")
    chat.wait_done()
    directions = chat.page.evaluate(
        """[...document.querySelectorAll(".bubble, .prose p")].map((node) => {
            const place = (at) => {
                const range = document.createRange();
                range.setStart(node.firstChild, at);
                range.setEnd(node.firstChild, at + 1);
                return range.getBoundingClientRect();
            };
            const first = place(0), mark = place(node.firstChild.length - 1), box = node.getBoundingClientRect();
            const begins = first.left - box.left < box.right - first.right ? "left" : "right";
            return [begins, mark.left < first.left ? "to the left" : "to the right"];
        })"""
    )
    assert directions == [["right", "to the left"], ["right", "to the left"], ["left", "to the right"]]


def test_scrolling_up_is_respected_and_jump_returns(chat: Chat) -> None:
    """The position of a reader who scrolled up is kept, and the jump button leads back to the end."""
    answer_with(chat.page, delta("line\n\n" * 80), "id: s.0.9\ndata: [DONE]")
    for text in ("One", "Two"):
        chat.send(text)
        chat.wait_done()
    jump = chat.page.locator("#jump")
    expect(jump).to_be_hidden()
    chat.page.mouse.move(700, 300)
    chat.page.mouse.wheel(0, -900)
    expect(jump).to_be_visible()
    jump.click()
    expect(jump).to_be_hidden()
    chat.page.wait_for_function(
        "(({ scrollHeight, clientHeight, scrollTop }) => scrollHeight - clientHeight - scrollTop < 4)"
        "(document.getElementById('scroller'))"
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_a_toast_covers_neither_figures_nor_buttons(
    slow_server: Server, new_page: Callable[..., Page], width: int
) -> None:
    """A toast is shown above the column, and the copy button itself shows that the text was copied."""
    chat = Chat(new_page(viewport={"width": width, "height": 800}), slow_server.url).open()
    answer_with(chat.page, delta("line\n\n" * 80), "id: s.0.9\ndata: [DONE]")
    chat.send("Say lines")
    chat.wait_done()
    copy = chat.answers.last.get_by_role("button", name="Copy answer")
    icon = copy.locator("use")
    before = icon.get_attribute("href") or ""
    copy.click()
    expect(icon).to_have_attribute("href", before.replace("#copy", "#check"))
    expect(chat.status).to_have_text("Copied")
    expect(chat.page.locator(".toast")).to_have_count(0)
    expect(icon).to_have_attribute("href", before)
    chat.page.locator("#settings-open").click()
    chat.page.locator("#settings-default").click()
    toast = chat.page.locator(".toast")
    expect(toast).to_be_visible()
    figures = chat.answers.last.locator(".figures").bounding_box()
    chat.page.mouse.move(width - 100, 300)
    chat.page.mouse.wheel(0, -900)
    expect(chat.page.locator("#jump")).to_be_visible()
    jump, toast_box = chat.page.locator("#jump").bounding_box(), toast.bounding_box()
    assert toast_box and figures and jump
    assert toast_box["y"] + toast_box["height"] < min(figures["y"], jump["y"])
    composer = chat.page.locator("#composer").bounding_box()
    assert composer
    assert abs(toast_box["x"] + toast_box["width"] / 2 - composer["x"] - composer["width"] / 2) < 10


def test_an_example_for_code_gets_code(chat: Chat) -> None:
    """The demo model can do all that an empty conversation offers."""
    chat.set_field("temperature", "0")
    chat.page.get_by_role("button", name="Python function").click()
    chat.wait_done()
    expect(chat.answers.last.locator(".code[data-lang=python]")).to_be_visible()


def test_forbidden_storage_is_reported_and_the_page_still_works(
    slow_server: Server, new_page: Callable[..., Page]
) -> None:
    """Without IndexedDB and localStorage the page reports that nothing is stored, and works."""
    page = new_page()
    page.add_init_script("""
        Object.defineProperty(window, "localStorage", { get() { throw new DOMException("denied", "SecurityError"); } });
        IDBFactory.prototype.open = () => { throw new DOMException("denied", "SecurityError"); };
    """)
    chat = Chat(page, slow_server.url).open()
    expect(page.locator("#toasts")).to_contain_text("cannot save conversations")
    chat.send("Tell me a story about a fox")
    chat.wait_started()
    chat.wait_done()


def test_the_model_picker_appears_when_there_is_a_choice(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """With two models there is a picker, and the request has the chosen model and the best tier of the key."""
    page = new_page()
    page.route(
        "**/v1/models",
        lambda route: route.fulfill(
            json={
                "object": "list",
                "data": [
                    {"id": name, "object": "model", "owned_by": "x", "service_tiers": ["default", "flex"]}
                    for name in ("one", "two")
                ],
            }
        ),
    )
    chat = Chat(page, slow_server.url).open()
    answer_with(page, delta("Yes"), "id: s.0.9\ndata: [DONE]")
    page.locator("#model").select_option("two")
    with page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Hello")
    assert sent.value.post_data_json["model"] == "two"
    assert sent.value.post_data_json["service_tier"] == "default"


def test_loading_shows_progress_and_writing_is_possible(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """While the model loads there is a bar with numbers, and a message can be written but not sent."""
    page = new_page()
    ready = []

    def health(route: Route) -> None:
        if ready:
            return route.fulfill(json={"status": "ready"})
        return route.fulfill(
            status=503,
            json={
                "error": {"message": "Loading.", "type": "server_error", "param": None, "code": "loading"},
                "loading": {"done": 250_000_000, "total": 1_000_000_000, "what": "weights"},
            },
        )

    page.route("**/health", health)
    page.goto(slow_server.url + "/")
    expect(page.locator("#loading-detail")).to_contain_text("250 MB of 1.0 GB")
    expect(page.locator("#loading-bar")).to_have_js_property("value", 250_000_000)
    page.locator("#prompt").fill("Hello")
    expect(page.locator("#send")).to_be_disabled()
    ready.append(True)
    expect(page.locator("#loading")).to_be_hidden()
    expect(page.locator("#send")).to_be_enabled()


def test_every_control_has_a_label(chat: Chat) -> None:
    """Every button, link and field in the thread and around it is labelled."""
    answer_with(chat.page, delta("```js\n1\n```"), "id: s.0.9\ndata: [DONE]")
    chat.send("Hello")
    chat.wait_done()
    unlabelled = chat.page.evaluate("""() => [...document.querySelectorAll("button, a, input, select, textarea")]
        .filter((node) => !(node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim()))
        .map((node) => node.outerHTML)""")
    assert unlabelled == []
