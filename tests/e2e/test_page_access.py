"""Both pages for keyboards and screen readers: axe finds nothing in any state, answers are announced, focus stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, Chat, answer_with, begin_with, delta

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js").read_text()
DONE = "id: s.0.9\ndata: [DONE]"
RICH = "# Title\n\nText with a [link](https://x.example) and `code`.\n\n- a\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```py\nx = 1\n```\n\n\\(x^2\\)"
QUEUED = ': carousel {"state": "queued", "position": 2, "cause": "slots"}'


def faults(page: Page) -> list[str]:
    """The violations that axe finds in the page as it stands, each with its elements."""
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(AXE)
    found = page.evaluate("() => axe.run().then(({ violations }) => violations)")
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chat_page_has_no_fault_in_any_state(
    slow_server: Server, new_page: Callable[..., Page], scheme: str
) -> None:
    """Empty, dialogs, finished, refused, waiting, streaming, queued."""
    chat = Chat(new_page(color_scheme=scheme), slow_server.url).open()
    page = chat.page
    assert faults(page) == []
    for button in ("#settings-open", "#help-button", "#key-button"):
        page.locator(button).click()
        assert faults(page) == [], button
        page.keyboard.press("Escape")
    answer_with(page, delta("<think>Hm.</think>" + RICH), DONE)
    chat.send("word " * 1000)
    chat.wait_done()
    expect(chat.text().locator(".katex")).to_have_count(1)
    assert faults(page) == []
    error = {"error": {"message": "No.", "code": "context_length_exceeded", "type": "x"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=error))
    chat.send("Again")
    expect(chat.answers.last.locator(".trouble")).to_be_visible()
    assert faults(page) == []
    begin_with(page, QUEUED)
    chat.send("Wait")
    expect(chat.answers.last.locator(".wait")).to_contain_text("2nd in line")
    chat.prompt.fill("Next")
    chat.prompt.press("Enter")
    assert faults(page) == []
    chat.stop.click()
    begin_with(page, delta("One"))
    chat.send("Count")
    chat.wait_begun()
    assert faults(page) == []


def test_the_drawer_of_a_phone_has_no_fault(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Closed, open, and with a conversation behind it."""
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    chat = Chat(new_page(**phone), slow_server.url).open()
    answer_with(chat.page, delta(RICH), DONE)
    chat.send("Hello")
    chat.wait_done()
    assert faults(chat.page) == []
    chat.page.locator("#drawer-open").click()
    assert faults(chat.page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_engine_page_has_no_fault_idle_or_busy(
    slow_server: Server, new_page: Callable[..., Page], scheme: str
) -> None:
    """With its table open, too."""
    chat = Chat(new_page(color_scheme=scheme), slow_server.url).open()
    page = chat.page.context.new_page()
    page.goto(slow_server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=ANSWER_MS)
    assert faults(page) == []
    chat.send_long()
    chat.wait_begun()
    page.locator("#slots-table summary").click()
    expect(page.locator("#slots-body")).to_contain_text("interactive", timeout=ANSWER_MS)
    assert faults(page) == []
    chat.stop.click()


def test_a_complete_answer_is_announced_once(chat: Chat) -> None:
    """Block after block in a polite region, formulas as their TeX; while tokens come only the state is announced."""
    begin_with(chat.page, QUEUED)
    chat.send("Wait")
    expect(chat.status).to_have_text("Waiting, 2 in line")
    chat.stop.click()
    begin_with(chat.page, QUEUED, delta("One "))
    chat.send("Count")
    expect(chat.status).to_have_text("Answering")
    spoken = chat.page.locator("#spoken")
    expect(spoken).to_be_empty()
    chat.stop.click()
    chat.reload()
    answer_with(chat.page, delta("First.\n\nThen \\(x^2\\)."), DONE)
    chat.send("Go on")
    expect(spoken.locator("p")).to_have_text(["First.", "Then x^2."])
    expect(spoken).to_have_attribute("aria-live", "polite")


def test_the_focus_stays_in_the_conversation(chat: Chat) -> None:
    """After an example and after Answer again, whose buttons are gone, it is in the message box."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.page.locator(".example").first.click()
    expect(chat.prompt).to_be_focused()
    chat.wait_done()
    chat.answers.last.get_by_role("button", name="Answer again").press("Enter")
    expect(chat.prompt).to_be_focused()


def test_a_drawer_does_not_outlive_the_phone_s_width(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """When the window gets wide, as a phone does that is turned, the page can be used again."""
    chat = Chat(new_page(viewport={"width": 600, "height": 900}), slow_server.url).open()
    chat.page.locator("#drawer-open").click()
    chat.page.set_viewport_size({"width": 1000, "height": 600})
    expect(chat.page.locator("#main")).to_have_js_property("inert", False)
    expect(chat.page.locator("#scrim")).to_be_hidden()
    chat.prompt.click()
    expect(chat.prompt).to_be_focused()


def test_enter_in_the_search_opens_a_conversation_and_writes_nothing(chat: Chat) -> None:
    """The focus moves to the message box, the key does not."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.send("Is it so?")
    chat.wait_done()
    chat.page.locator("#new").click()
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.type("so")
    chat.page.keyboard.press("Enter")
    expect(chat.answers).to_have_count(1)
    expect(chat.prompt).to_be_focused()
    expect(chat.prompt).to_have_value("")
