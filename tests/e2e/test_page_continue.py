"""Answers that ended too early and requests that could not be sent can be continued without losing text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, Chat, answer_with, begin_with, delta, reasoning_delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
LENGTH: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length"}]}
FULL = {"error": {"message": "the prompt has 2067 tokens", "code": "context_length_exceeded", "type": "x"}}


def resume(chat: Chat) -> dict[str, Any]:
    """Press Continue and return the request that it sends."""
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.answers.last.get_by_role("button", name="Continue").click()
    return dict(sent.value.post_data_json)


def test_an_answer_cut_by_length_continues_in_place(chat: Chat) -> None:
    """The real server continues it, and the existing text stays."""
    chat.set_field("max_tokens", "6")
    chat.set_field("temperature", "0")
    chat.send("Tell me a story about a fox")
    chat.wait_done()
    before = chat.text().inner_text().strip("*")
    body = resume(chat)
    assert body["continue_final_message"] is True
    assert body["messages"][-1]["role"] == "assistant"
    chat.wait_done()
    expect(chat.answers).to_have_count(1)
    after = chat.text().inner_text()
    assert after.startswith(before)
    assert len(after) > len(before)
    expect(chat.answers.last.locator(".figures")).to_contain_text("6 tokens")


def test_a_stopped_answer_can_be_continued_and_only_the_last_one(chat: Chat) -> None:
    """An answer with a question after it has no Continue button, nor has a complete one."""
    chat.send_long()
    chat.wait_started()
    chat.stop.click()
    chat.wait_done()
    continue_button = chat.page.get_by_role("button", name="Continue")
    expect(continue_button).to_have_count(1)
    chat.page.unroute_all()
    answer_with(chat.page, delta(" The end."), DONE)
    resume(chat)
    expect(chat.text()).to_contain_text("The end.")
    chat.wait_done()
    expect(continue_button).to_have_count(0)
    answer_with(chat.page, delta("Cut"), LENGTH, DONE)
    chat.send("More")
    chat.wait_done()
    expect(continue_button).to_have_count(1)
    answer_with(chat.page, delta("Whole."), DONE)
    chat.send("And more")
    expect(chat.text()).to_have_text("Whole.")
    expect(continue_button).to_have_count(0)


def test_an_answer_that_cannot_be_read_keeps_its_text(chat: Chat) -> None:
    """Invalid JSON in the stream ends the answer with a plain message, and it can be continued."""
    answer_with(chat.page, delta("Half an"), "id: s.0.3\ndata: {broken", DONE)
    chat.send("Count")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("could not read the rest of the answer")
    expect(chat.text()).to_have_text("Half an")
    answer_with(chat.page, delta(" answer."), DONE)
    resume(chat)
    expect(chat.text()).to_have_text("Half an answer.")


def test_the_page_requests_the_longest_resume_grace(chat: Chat) -> None:
    """The page requests the number of seconds that the server has configured."""
    allowed = chat.page.locator("meta[name=carousel-resume]").get_attribute("content")
    assert allowed == "600"
    answer_with(chat.page, delta("Yes."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Is it so?")
    assert sent.value.headers["x-carousel-resume"] == allowed


def test_a_full_conversation_continues_without_its_oldest_messages(chat: Chat) -> None:
    """The question that did not fit is sent again with fewer messages, and a line marks those that are left out."""
    for number in range(3):
        answer_with(chat.page, delta(f"Answer {number}. " + "word " * 800), DONE)
        chat.send(f"Question {number}?")
        chat.wait_done()
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=FULL))
    chat.send("Once more")
    expect(chat.page.get_by_role("button", name="Leave out the oldest messages")).to_be_visible()  # refused
    chat.page.unroute_all()
    answer_with(chat.page, delta("It fits."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.page.get_by_role("button", name="Leave out the oldest messages").click()
    contents = [message["content"][:10] for message in sent.value.post_data_json["messages"]]
    assert contents == ["Question 2", "Answer 2. ", "Once more"]
    expect(chat.text()).to_have_text("It fits.")
    expect(chat.answers).to_have_count(4)
    chat.reload()
    line = chat.page.locator(".left-out")
    expect(line).to_have_text("The model no longer sees the messages above.")
    expect(line.locator("xpath=following-sibling::*[1]")).to_contain_text("Question 2?")


def test_messages_that_would_be_left_out_are_listed_before_they_are(chat: Chat) -> None:
    """First words and files of each, oldest first; the next message counts, and after a refusal exactly these are left out."""
    length = chat.page.evaluate("async () => (await (await fetch('/v1/models')).json()).data[0].max_model_len")
    note = chat.page.locator("#context-note")
    chat.page.locator("#file-input").set_input_files(
        [{"name": "weather.csv", "mimeType": "text/csv", "buffer": b"city,degrees\nGhent,18\n"}]
    )
    for number in range(3):
        expect(note).to_be_hidden()
        usage = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": (number + 1) * length // 4}
        text = f"Answer {number}. " + "word " * 600
        answer_with(chat.page, delta(text), LENGTH, {"choices": [], "usage": usage}, DONE)
        chat.send(f"Question {number}?\n\nIt is a **long** one.")
        chat.wait_done()
    entries = note.locator("li")
    note.get_by_text("75 % of the context used").click()
    expect(entries).to_have_count(2)
    expect(entries.first).to_have_text("You weather.csv, Question 0? It is a **long** one.")
    expect(entries.last).to_contain_text("Answer Answer 0. word word")
    note.get_by_text("75 % of the context used").click()
    expect(entries).to_have_count(0)
    chat.prompt.fill("More words. " * 150)
    note.get_by_text("75 % of the context used").click()
    expect(entries).to_have_count(4)
    expect(entries.nth(2)).to_have_text("You Question 1? It is a **long** one.")
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=FULL))
    chat.prompt.press("Enter")
    leave_out = chat.page.get_by_role("button", name="Leave out the oldest messages")
    expect(leave_out).to_be_visible()
    expect(entries).to_have_count(0)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        leave_out.click()
    assert [message["content"][:10] for message in sent.value.post_data_json["messages"]] == [
        "Question 2", "Answer 2. ", "More words"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "shown"),
    [
        (
            "the prompt has 2067 tokens, but the model's context has 2048, including the answer",
            "This conversation does not fit the model's context. The prompt has 2067 tokens, but the model's context has 2048,"
            " including the answer. Leave out the oldest messages, begin a new conversation, or shorten your message.",
        ),
        (
            "the prompt has 9 tokens and max_tokens is 2040, together more than the model's context of 2048 tokens",
            "This conversation does not fit the model's context. The prompt has 9 tokens and max_tokens is 2040, together more"
            " than the model's context of 2048 tokens. Leave out the oldest messages, begin a new conversation, or lower the"
            " token limit in the settings.",
        ),
    ],
)
def test_a_full_context_is_explained_in_sentences(chat: Chat, server: str, shown: str) -> None:
    """The problem, the server's numbers and the possible actions."""
    error = {"error": {"message": server, "code": "context_length_exceeded", "type": "x"}}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=error))
    chat.send("Once more")
    expect(chat.page.locator(".trouble-text")).to_have_text(f"{shown}400 context_length_exceeded")


def test_a_question_that_does_not_fit_is_kept_for_a_new_conversation(chat: Chat) -> None:
    """The text is put into the box of the new conversation, since it cannot fit even alone."""
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=FULL))
    chat.send("A long question")
    chat.page.get_by_role("button", name="Leave out the oldest messages").click()
    expect(chat.page.locator(".toast")).to_contain_text("alone does not fit")
    chat.page.get_by_role("button", name="New conversation").last.click()
    expect(chat.answers).to_have_count(0)
    expect(chat.prompt).to_have_value("A long question")


def test_a_server_that_is_back_gets_the_question_automatically(chat: Chat) -> None:
    """While the server is unreachable the page shows it, and Try now sends at once."""
    chat.page.route("**/v1/chat/completions", lambda route: route.abort())
    chat.send("Count")
    expect(chat.answers.last.locator(".wait")).to_contain_text("The server cannot be reached")
    answer_with(chat.page, delta("One."), DONE)
    expect(chat.text()).to_have_text("One.")
    chat.page.route("**/v1/chat/completions", lambda route: route.abort())
    chat.send("Count")
    chat.answers.last.get_by_role("button", name="Try now").click()
    chat.stop.click()
    expect(chat.answers.last.locator(".figures")).to_contain_text("stopped")


def test_a_wrong_key_and_a_missing_key_have_different_messages(chat: Chat) -> None:
    """The dialog and the answer distinguish both cases."""
    error = {"error": {"message": "a valid API key is needed", "code": "invalid_api_key", "type": "x"}}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=401, json=error))
    chat.send("Hello")
    reason = chat.page.locator("#key-why")
    expect(reason).to_contain_text("The server needs an API key.")
    chat.page.locator("#key-input").fill("wrong")
    chat.page.locator("#key-input").press("Enter")
    expect(reason).to_contain_text("The server refused this API key.")
    chat.page.keyboard.press("Escape")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("The server refused this API key.")


def test_an_unsent_edit_survives_opening_another_conversation(chat: Chat) -> None:
    """The edit is restored until it is sent or cancelled."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.send("Is it so?")
    chat.wait_done()
    chat.questions.first.hover()
    chat.page.get_by_role("button", name="Edit and send again").click()
    box = chat.page.get_by_role("textbox", name="Edit message")
    box.fill("Is it really so")
    chat.page.locator("#new").click()
    expect(chat.page.locator("#empty")).to_be_visible()
    chat.rows.first.get_by_role("link").click()
    expect(box).to_have_value("Is it really so")
    chat.reload()
    expect(box).to_have_value("Is it really so")
    chat.page.get_by_role("button", name="Cancel").click()
    expect(chat.questions.first).to_contain_text("Is it so?")
    chat.reload()
    expect(box).to_have_count(0)


def test_a_message_is_queued_while_an_answer_runs_and_sent_after_it(chat: Chat) -> None:
    """Enter queues it visibly, and it is sent when the answer is complete."""
    chat.set_field("max_tokens", "200")
    chat.send("Tell me a very long story about a fox")
    chat.wait_started()
    chat.prompt.fill("And an owl?")
    chat.prompt.press("Enter")
    queued = chat.page.locator("#queued")
    expect(queued).to_contain_text("And an owl?")
    expect(chat.prompt).to_be_empty()
    expect(chat.questions).to_have_count(1)
    expect(chat.questions).to_have_count(2, timeout=ANSWER_MS)
    expect(chat.questions.last).to_contain_text("And an owl?")
    expect(queued).to_be_hidden()
    chat.wait_done()


def test_a_queued_message_can_be_taken_back_and_returns_after_a_stop(chat: Chat) -> None:
    """In both cases it is neither sent nor lost."""
    begin_with(chat.page, delta("One"))
    chat.send("Count")
    chat.wait_started()
    for end in ("take back", "stop"):
        chat.prompt.fill(f"Then {end}")
        chat.prompt.press("Enter")
        expect(chat.page.locator("#queued")).to_contain_text(f"Then {end}")
        if end == "stop":
            chat.stop.click()
        else:
            chat.page.get_by_role("button", name="Take back").click()
        expect(chat.prompt).to_have_value(f"Then {end}")
        expect(chat.page.locator("#queued")).to_be_hidden()
    expect(chat.questions).to_have_count(1)


def test_phases_without_text_are_named(slow_server: Server, new_page: Callable[..., Any]) -> None:
    """Reading is shown first, then thinking with its seconds and open reasoning, until the answer begins."""
    page = new_page()
    page.clock.install()
    chat = Chat(page, slow_server.url)
    page.goto(chat.url + "/")
    page.clock.run_for(1000)
    begin_with(page, ": ping")
    chat.send("How much?")
    wait = chat.answers.last.locator(".wait")
    expect(wait).to_contain_text("Reading your message")
    chat.stop.click()
    begin_with(page, reasoning_delta("Two **and** two"))
    chat.send("How much?")
    page.clock.run_for(1000)
    reasoning = chat.answers.last.locator(".reasoning")
    expect(reasoning.locator("strong")).to_have_text("and")
    expect(reasoning.locator("strong")).to_be_visible()
    page.clock.run_for(12_000)
    expect(wait).to_contain_text("Thinking (13 s)")
