"""Answers that ended too early, and requests that could not be sent: each has a way on that loses no text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, Chat, answer_with, begin_with, delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
LENGTH: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length"}]}
FULL = {"error": {"message": "the prompt has 2067 tokens", "code": "context_length_exceeded", "type": "x"}}


def resume(chat: Chat) -> dict[str, Any]:
    """Press Continue and return the request that it sends."""
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.answers.last.get_by_role("button", name="Continue").click()
    return dict(sent.value.post_data_json)


def test_an_answer_cut_by_length_goes_on_in_the_same_answer(chat: Chat) -> None:
    """The real server continues it: the text that is there stays, and more follows."""
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
    """An answer with a question after it has no Continue, nor has one that is complete."""
    chat.send_long()
    chat.wait_started()
    chat.stop.click()
    chat.wait_done()
    go_on = chat.page.get_by_role("button", name="Continue")
    expect(go_on).to_have_count(1)
    chat.page.unroute_all()
    answer_with(chat.page, delta(" The end."), DONE)
    resume(chat)
    expect(chat.text()).to_contain_text("The end.")
    chat.wait_done()
    expect(go_on).to_have_count(0)
    answer_with(chat.page, delta("Cut"), LENGTH, DONE)
    chat.send("More")
    chat.wait_done()
    expect(go_on).to_have_count(1)
    answer_with(chat.page, delta("Whole."), DONE)
    chat.send("And more")
    expect(chat.text()).to_have_text("Whole.")
    expect(go_on).to_have_count(0)


def test_an_answer_that_cannot_be_read_keeps_its_text(chat: Chat) -> None:
    """Broken JSON in the stream ends the answer with plain words and a way on."""
    answer_with(chat.page, delta("Half an"), "id: s.0.3\ndata: {broken", DONE)
    chat.send("Count")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("could not read the rest of the answer")
    expect(chat.text()).to_have_text("Half an")
    answer_with(chat.page, delta(" answer."), DONE)
    resume(chat)
    expect(chat.text()).to_have_text("Half an answer.")


def test_an_answer_goes_on_without_a_reader_as_long_as_the_server_allows(chat: Chat) -> None:
    """The page asks for the number that the server gave it."""
    allowed = chat.page.locator("meta[name=carousel-resume]").get_attribute("content")
    assert allowed == "600"
    answer_with(chat.page, delta("Yes."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Is it so?")
    assert sent.value.headers["x-carousel-resume"] == allowed


def test_a_full_conversation_goes_on_without_its_oldest_messages(chat: Chat) -> None:
    """The question that did not fit is asked again with fewer messages, and a line shows which are left out."""
    for number in range(3):
        answer_with(chat.page, delta(f"Answer {number}. " + "word " * 800), DONE)
        chat.send(f"Question {number}?")
        chat.wait_done()
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=FULL))
    chat.send("Once more")
    expect(chat.page.get_by_role("button", name="Leave out the oldest messages")).to_be_visible()  # it was refused
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


def test_a_question_that_does_not_fit_is_kept_for_a_new_conversation(chat: Chat) -> None:
    """The typed text stands in the box of the new conversation, and alone it cannot be made to fit."""
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=FULL))
    chat.send("A long question")
    chat.page.get_by_role("button", name="Leave out the oldest messages").click()
    expect(chat.page.locator(".toast")).to_contain_text("alone does not fit")
    chat.page.get_by_role("button", name="New conversation").last.click()
    expect(chat.answers).to_have_count(0)
    expect(chat.prompt).to_have_value("A long question")


def test_a_server_that_is_back_gets_the_question_by_itself(chat: Chat) -> None:
    """While it cannot be reached the page says so; Try now asks at once."""
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


def test_a_wrong_key_and_a_missing_key_have_different_words(chat: Chat) -> None:
    """The card and the answer say which of both it was."""
    error = {"error": {"message": "a valid API key is needed", "code": "invalid_api_key", "type": "x"}}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=401, json=error))
    chat.send("Hello")
    why = chat.page.locator("#key-why")
    expect(why).to_contain_text("The server needs an API key.")
    chat.page.locator("#key-input").fill("wrong")
    chat.page.locator("#key-input").press("Enter")
    expect(why).to_contain_text("The server refused this API key.")
    chat.page.keyboard.press("Escape")
    expect(chat.answers.last.locator(".trouble")).to_contain_text("The server refused this API key.")


def test_an_edit_in_progress_survives_a_look_at_another_conversation(chat: Chat) -> None:
    """It stands there again, until it is sent or cancelled."""
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
    """Enter queues it, it is shown, and goes out when the answer is complete."""
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
    """Neither way is it sent or lost."""
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


def test_a_phase_without_text_has_its_name(slow_server: Server, new_page: Callable[..., Any]) -> None:
    """Reading comes first, then thinking with its seconds; thoughts stand open, in Markdown, until the answer begins."""
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
    begin_with(page, delta("<think>\nTwo **and** two"))
    chat.send("How much?")
    page.clock.run_for(1000)
    thoughts = chat.answers.last.locator(".thoughts")
    expect(thoughts.locator("strong")).to_have_text("and")
    expect(thoughts.locator("strong")).to_be_visible()
    page.clock.run_for(12_000)
    expect(wait).to_contain_text("Thinking (13 s)")
