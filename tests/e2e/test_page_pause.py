"""Pause and Later: an answer gives its seat away, and goes on in the same text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.page import ANSWER_MS, Chat

pytestmark = pytest.mark.browser


def seeded_long(chat: Chat) -> None:
    """Ask for an answer of 300 tokens that is the same each time."""
    chat.set_field("seed", "7")
    chat.send_long(300)


def test_a_paused_answer_goes_on_in_the_same_text(chat: Chat) -> None:
    """Also after a reload in the pause, which is shown as one."""
    seeded_long(chat)
    chat.wait_done()
    whole = chat.text().inner_text()
    chat.answers.last.get_by_role("button", name="Answer again").click()
    pause = chat.page.get_by_role("button", name="Pause")
    pause.click()
    expect(chat.answers.last.locator(".wait")).to_contain_text("Paused, it goes on when you resume it")
    chat.wait_saved("paused")
    chat.reload()
    expect(chat.answers.last.locator(".wait")).to_contain_text("Paused, it goes on when you resume it")
    before = chat.text().inner_text()
    chat.page.get_by_role("button", name="Go on").click()
    chat.wait_done()
    assert chat.text().inner_text() == whole
    assert len(before) < len(whole)
    expect(pause).to_be_hidden()


def test_a_later_answer_is_the_same_text_and_is_marked_when_it_is_ready(chat: Chat) -> None:
    """The tab's title and the list say so until its conversation is opened, and the browser notifies."""
    chat.page.context.grant_permissions(["notifications"])
    chat.page.evaluate(
        "() => { window.shown = []; window.Notification = class {"
        " static permission = 'granted'; constructor(title, { body }) { shown.push([title, body]); } }; }"
    )
    seeded_long(chat)
    chat.wait_done()
    whole = chat.text().inner_text()
    chat.answers.last.get_by_role("button", name="Answer again").click()
    with chat.page.expect_request(lambda request: "/v1/requests/" in request.url) as sent:
        chat.page.get_by_role("button", name="Later", exact=True).click()
    assert sent.value.post_data_json == {"service_tier": "flex"}
    expect(chat.page.locator(".toast")).to_contain_text("gives way to others")
    chat.page.locator("#new").click()
    expect(chat.page).to_have_title("(1) Carousel", timeout=ANSWER_MS)
    expect(chat.rows.first.get_by_label("new answer")).to_be_attached()
    assert chat.page.evaluate("shown") == [
        ["Tell me a very long story about a fox, a frog and an owl, with every detail", "The answer is ready."]
    ]
    chat.rows.first.get_by_role("link").click()
    assert chat.text().inner_text() == whole
    expect(chat.page).not_to_have_title("(1) Carousel")
