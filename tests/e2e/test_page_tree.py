"""Versions and branches: nothing that was written is lost by an edit, another answer or a cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, begin_with, delta, is_question, sse
from tests.e2e.test_page_store import second_tab, texts

pytestmark = pytest.mark.browser

DONE = "id: s.0.99\ndata: [DONE]"


def ask(chat: Chat, question: str, answer: str) -> None:
    """Ask a question that gets this answer."""
    chat.page.unroute_all()
    answer_with(chat.page, delta(answer), DONE)
    chat.send(question)
    expect(chat.text()).to_have_text(answer)
    chat.wait_done()


def again(chat: Chat, message: Locator, answer: str) -> None:
    """Ask for another answer, which is this one."""
    chat.page.unroute_all()
    answer_with(chat.page, delta(answer), DONE)
    message.get_by_role("button", name="Answer again").click()
    expect(chat.text()).to_have_text(answer)
    chat.wait_done()


def edit(chat: Chat, message: Locator, text: str) -> None:
    """Ask another version of a question."""
    message.hover()
    message.get_by_role("button", name="Edit and send again").click()
    chat.page.get_by_role("textbox", name="Edit message").fill(text)
    chat.page.keyboard.press("Enter")
    expect(chat.questions.last).to_contain_text(text)


def menu(chat: Chat, message: Locator, item: str) -> None:
    """Choose an item of a message's menu."""
    message.hover()
    message.get_by_role("button", name="More", exact=True).click()
    chat.page.get_by_role("menuitem", name=item).click()


def choice(index: int, text: str) -> dict[str, Any]:
    """Return a chunk with some text of one choice."""
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]}


def end(index: int) -> dict[str, Any]:
    """Return the last chunk of one choice."""
    return {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}


def test_what_came_after_an_edited_question_is_in_its_other_version(chat: Chat) -> None:
    """Arrow keys lead there and back, the focus stays on the switch, and a reload opens the version that was read last."""
    for number in range(3):
        ask(chat, f"Question {number}?", f"Answer {number}.")
    answer_with(chat.page, delta("Another."), DONE)
    edit(chat, chat.questions.first, "A better question?")
    expect(chat.answers).to_have_count(1)
    versions = chat.questions.first.locator(".versions")
    expect(versions).to_contain_text("2/2")
    versions.get_by_role("button", name="Earlier version").focus()
    chat.page.keyboard.press("ArrowLeft")
    expect(chat.answers.locator(".body")).to_have_text(["Answer 0.", "Answer 1.", "Answer 2."])
    expect(versions.get_by_role("button", name="Later version")).to_be_focused()
    chat.reload()
    expect(chat.answers.locator(".body")).to_have_text(["Answer 0.", "Answer 1.", "Answer 2."])
    versions.get_by_role("button", name="Later version").focus()
    chat.page.keyboard.press("ArrowRight")
    expect(chat.answers.locator(".body")).to_have_text(["Another."])
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("And then?")
    contents = [message["content"] for message in sent.value.post_data_json["messages"]]
    assert contents == ["A better question?", "Another.", "And then?"]


def test_an_answer_without_text_leaves_no_version(chat: Chat) -> None:
    """It is replaced, since nothing would be lost."""
    answer_with(chat.page, DONE)
    chat.send("Which is better?")
    chat.wait_done()
    again(chat, chat.answers.last, "The first.")
    expect(chat.answers.locator(".versions")).to_be_hidden()
    again(chat, chat.answers.last, "The second.")
    expect(chat.answers.get_by_role("group", name="Version 2 of 2")).to_be_visible()


def test_an_edited_answer_is_a_version_that_the_model_sees(chat: Chat) -> None:
    """Its text is sent with the next question, and the model's own text is the version before it."""
    answer_with(chat.page, delta("The **first**."), DONE)
    chat.send("Which is better?")
    chat.wait_done()
    menu(chat, chat.answers.last, "Edit answer")
    box = chat.page.get_by_role("textbox", name="Edit answer")
    expect(box).to_have_value("The **first**.")
    box.fill("The second.")
    chat.page.get_by_role("button", name="Save").click()
    expect(chat.text()).to_have_text("The second.")
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Why?")
    assert [turn["content"] for turn in sent.value.post_data_json["messages"]] == [
        "Which is better?",
        "The second.",
        "Why?",
    ]
    chat.answers.first.get_by_role("button", name="Earlier version").click()
    expect(chat.text()).to_have_text("The first.")


def test_an_answer_goes_on_from_the_cursor(chat: Chat) -> None:
    """The text before it and what was typed there is continued, and the whole answer is the version before."""
    ask(chat, "Tell me a story", "A fox ran. It slept.")
    menu(chat, chat.answers.last, "Edit answer")
    box = chat.page.get_by_role("textbox", name="Edit answer")
    box.evaluate("(node) => node.setSelectionRange(10, 10)")
    box.press_sequentially(" Then")
    answer_with(chat.page, delta(" it flew."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.page.get_by_role("button", name="Continue from the cursor").click()
    body = sent.value.post_data_json
    assert body["continue_final_message"] and body["messages"][-1]["content"] == "A fox ran. Then"
    expect(chat.text()).to_have_text("A fox ran. Then it flew.")
    chat.answers.last.get_by_role("button", name="Earlier version").click()
    expect(chat.text()).to_have_text("A fox ran. It slept.")


def test_nothing_before_the_cursor_is_another_answer(chat: Chat) -> None:
    """There is no text to continue."""
    ask(chat, "Tell me a story", "A fox ran.")
    menu(chat, chat.answers.last, "Edit answer")
    chat.page.get_by_role("textbox", name="Edit answer").evaluate("(node) => node.setSelectionRange(0, 0)")
    answer_with(chat.page, delta("An owl flew."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.page.get_by_role("button", name="Continue from the cursor").click()
    assert "continue_final_message" not in sent.value.post_data_json
    expect(chat.text()).to_have_text("An owl flew.")


def test_a_complete_answer_is_deleted_beside_arriving_ones(chat: Chat) -> None:
    """The others go on in their stream, and are saved."""
    ask(chat, "Tell me a story", "The first.")
    begin_with(chat.page, choice(0, "A fox"), end(0), choice(1, "An owl"), choice(2, "A frog"))
    menu(chat, chat.answers.last, "Three answers at once")
    three = chat.page.locator(".side-by-side [data-role=assistant]")
    expect(three.first).to_have_attribute("aria-busy", "false")
    menu(chat, three.first, "Delete from here")
    expect(three.locator(".body")).to_have_text(["An owl", "A frog"])
    expect(three.first).to_have_attribute("aria-busy", "true")
    chat.stop.click()
    expect(three.first).to_have_attribute("aria-busy", "false")
    chat.reload()
    expect(three.locator(".body")).to_have_text(["An owl", "A frog"])


def test_three_answers_arrive_side_by_side_until_one_is_picked(chat: Chat) -> None:
    """They are choices of one request and keep their own texts, also over a reload in the middle; then they are versions."""
    ask(chat, "Tell me a story", "The first.")
    begin_with(chat.page, choice(0, "A fox"), choice(1, "An owl"), choice(2, "A frog"), choice(0, " ran."), end(0))
    menu(chat, chat.answers.last, "Three answers at once")
    three = chat.page.locator(".side-by-side [data-role=assistant]")
    expect(three.locator(".body")).to_have_text(["A fox ran.", "An owl", "A frog"])
    expect(three.first).to_have_attribute("aria-busy", "false")
    expect(three.last).to_have_attribute("aria-busy", "true")
    chat.wait_saved("content")
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}}
    rest = sse("", "", "", "", "", choice(1, " flew."), choice(2, " sang."), end(1), end(2), usage, DONE)
    headers = {"content-type": "text/event-stream"}
    chat.page.route("**/v1/streams/s", lambda route: route.fulfill(status=200, headers=headers, body=rest))
    chat.reload()
    expect(three.locator(".body")).to_have_text(["A fox ran.", "An owl flew.", "A frog sang."])
    three.nth(1).get_by_role("button", name="Go on with this one").click()
    expect(three).to_have_count(0)
    expect(chat.text()).to_have_text("An owl flew.")
    expect(chat.answers.get_by_role("group", name="Version 3 of 4")).to_be_visible()
    chat.reload()
    expect(chat.text()).to_have_text("An owl flew.")


def test_three_real_answers_have_three_texts(chat: Chat) -> None:
    """One request is sent, whose stop ends all that are not complete."""
    chat.send("Tell me a story about a fox")
    chat.wait_done()
    chat.set_field("max_tokens", "400")
    requests: list[Any] = []
    chat.page.on("request", lambda request: requests.append(request) if is_question(request) else None)
    menu(chat, chat.answers.last, "Three answers at once")
    three = chat.page.locator(".side-by-side [data-role=assistant]")
    for answer in three.all():
        expect(answer.locator(".body")).to_have_text(re.compile(".{60}", re.DOTALL))
    chat.stop.click()
    for answer in three.all():
        expect(answer).to_have_attribute("aria-busy", "false")
    assert [request.post_data_json["n"] for request in requests] == [3]
    assert len(set(three.locator(".body").all_inner_texts())) == 3


def test_a_deleted_branch_comes_back_with_undo(chat: Chat) -> None:
    """A deletion ends at the branch: the other version stays, in this tab, in another one, and after a reload."""
    ask(chat, "One?", "Yes.")
    ask(chat, "Two?", "Also.")
    answer_with(chat.page, delta("No."), DONE)
    edit(chat, chat.questions.first, "Not one?")
    expect(chat.text()).to_have_text("No.")
    chat.questions.first.get_by_role("button", name="Earlier version").click()
    other = second_tab(chat)
    menu(chat, chat.questions.first, "Delete from here")
    expect(chat.answers.locator(".body")).to_have_text(["No."])
    expect(other.answers.locator(".body")).to_have_text(["No."])
    assert sorted(texts(chat.page)) == ["No.", "Not one?"]
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.answers.locator(".body")).to_have_text(["Yes.", "Also."])
    chat.reload()
    expect(chat.answers.locator(".body")).to_have_text(["Yes.", "Also."])
    assert sorted(texts(chat.page)) == ["Also.", "No.", "Not one?", "One?", "Two?", "Yes."]


def test_messages_after_a_deleted_one_are_still_shown(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Another browser may have added them meanwhile."""
    chat = Chat(new_page(), slow_server.url).open()
    ask(chat, "One?", "Yes.")
    ask(chat, "Two?", "Also.")
    chat.page.evaluate(
        """async () => {
            const open = indexedDB.open("carousel");
            await new Promise((done) => (open.onsuccess = done));
            const write = open.result.transaction("messages", "readwrite"), table = write.objectStore("messages");
            const all = table.getAll();
            await new Promise((done) => (all.onsuccess = done));
            const { id, conversation, parent } = all.result.find(({ content }) => content === "Yes.");
            table.put({ id, conversation, parent, deleted: 1, revision: 9, writer: "w" });
            await new Promise((done) => (write.oncomplete = done));
            open.result.close();
        }"""
    )
    chat.reload()
    expect(chat.questions.locator(".bubble")).to_have_text(["One?", "Two?"])
    expect(chat.answers.locator(".body")).to_have_text(["Also."])


def test_an_answer_goes_on_in_its_branch_while_another_one_is_read(chat: Chat) -> None:
    """It is complete when its version is shown again, and its text is nowhere else."""
    ask(chat, "One?", "Yes.")
    held: list[Route] = []
    chat.page.unroute_all()
    chat.page.route("**/v1/chat/completions", lambda route: held.append(route))  # noqa: PLW0108, a builtin has no signature
    chat.answers.last.get_by_role("button", name="Answer again").click()
    expect(chat.answers.last).to_have_attribute("aria-busy", "true")
    chat.answers.last.get_by_role("button", name="Earlier version").click()
    expect(chat.text()).to_have_text("Yes.")
    expect(chat.page.locator("#send")).to_be_visible()
    held[0].fulfill(
        status=200,
        body=sse(delta("No."), DONE),
        headers={"content-type": "text/event-stream", "x-carousel-stream": "s"},
    )
    chat.page.wait_for_function("() => !document.querySelector('.row-live')")
    expect(chat.text()).to_have_text("Yes.")
    chat.answers.last.get_by_role("button", name="Later version").click()
    expect(chat.text()).to_have_text("No.")
