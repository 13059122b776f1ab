"""Sizes that users depend on: touch targets, titles of the list, and reasoning that arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e import states
from tests.e2e.page import Chat, answer_with, begin_with, delta, reasoning_delta

pytestmark = pytest.mark.browser

# Links and numbers inside of a text are as high as its lines.
TARGETS = (
    "button:not(.footnote-jump), summary, select, input:not([type=checkbox]), a:not(.prose a, .about a, .skip), .check"
)
TOO_SMALL = """(selector) => [...document.querySelectorAll(selector)]
    .filter((node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true, contentVisibilityAuto: true }))
    .map((node) => [node, node.getBoundingClientRect()])
    .filter(([_, { width, height }]) => height < 43.5 || width < 43.5)
    .map(([node, { width, height }]) => `${node.outerHTML.slice(0, 90)} ${width.toFixed()}x${height.toFixed()}`)"""
TOUCHED = ("empty", "settings", "tools", "help", "key", "rich", "menu", "continue", "called", "editing", "full context")
TOUCHED += ("thought", "queued message", "retry", "list", "deleted", "pinned", "found", "presets", "in force")


def test_touch_targets_have_44_pixels(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """On a touch screen every control of both pages is at least 44 px wide and high."""
    for name in TOUCHED:
        page = new_page(**states.PHONE)
        states.CHAT[name](Chat(page, slow_server.url).open())
        page.wait_for_timeout(350)
        assert page.evaluate(TOO_SMALL, TARGETS) == [], name
        page.context.close()
    page = new_page(**states.PHONE)
    states.open_engine(page, slow_server.url, "busy")
    assert page.evaluate(TOO_SMALL, TARGETS) == []


def test_a_title_uses_the_width_of_its_row(chat: Chat) -> None:
    """It gives room to the menu button only while that is shown."""
    answer_with(chat.page, delta("Yes."), states.DONE)
    chat.send("A title that is much longer than the room that the list has for it")
    chat.wait_done()
    row, link = chat.rows.first, chat.rows.first.locator("a")
    text_end = """(node) => {
        const { paddingRight } = getComputedStyle(node);
        return node.parentElement.getBoundingClientRect().right - node.getBoundingClientRect().right + parseFloat(paddingRight);
    }"""
    chat.page.mouse.move(900, 400)
    assert link.evaluate(text_end) <= 12
    row.hover()
    button = row.get_by_role("button").bounding_box()
    edge = row.bounding_box()
    assert button and edge
    assert link.evaluate(text_end) >= edge["x"] + edge["width"] - button["x"]


def test_arriving_reasoning_scrolls_in_itself(chat: Chat) -> None:
    """It stays at its end until the reader scrolls up, and later it has its full height."""
    page = chat.page
    parts = [reasoning_delta(f"Step {i} of the reasoning.\n\n") for i in range(60)]
    begin_with(page, *parts)
    chat.send("How much?")
    frame = chat.answers.last.locator(".reasoning .fold-body")
    expect(frame).to_contain_text("Step 59")
    assert frame.evaluate("(node) => node.clientHeight") <= 256
    expect(frame.get_by_text("Step 59")).to_be_in_viewport()
    visible = """(node) => {
        const [box, last] = [node, node.querySelector(".block:last-child")].map((one) => one.getBoundingClientRect());
        return last.bottom <= box.bottom + 1;
    }"""
    assert frame.evaluate(visible)
    expect(frame).to_have_attribute("tabindex", "0")
    chat.stop.click()
    chat.wait_done()
    if chat.answers.last.locator(".reasoning").get_attribute("open") is None:
        chat.answers.last.locator(".reasoning summary").click()
    assert frame.evaluate("(node) => node.scrollHeight === node.clientHeight && node.clientHeight > 1000")
    assert frame.get_attribute("tabindex") is None
