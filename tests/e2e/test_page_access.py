"""Accessibility of both pages: no axe violations in any state, announced answers, and focus management."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e import states
from tests.e2e.page import Chat, answer_with, begin_with, delta
from tests.e2e.states import DONE, QUEUED
from tests.profiles import nightly

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parents[1] / "vendor" / "axe-core" / "axe.min.js").read_text()


SETTLE = """async () => {
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const ends = (animation) => animation.effect.getComputedTiming().endTime < Infinity;
    await Promise.allSettled(document.getAnimations().filter(ends).map(({ finished }) => finished));
}"""
RUN_AXE = "(rules) => axe.run(rules ? { runOnly: rules } : {}).then(({ violations }) => violations)"


def faults(page: Page) -> list[str]:
    """Return the violations that axe finds, with their elements; for the dark scheme, only those of contrast."""
    found: list[Any] = []
    page.evaluate(AXE)
    for scheme, rules in (("light", None), ("dark", ["color-contrast"])):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate(SETTLE)
        found += page.evaluate(RUN_AXE, rules)
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]


DEVICES = [pytest.param(states.DESK, id="desk"), pytest.param(states.PHONE, id="phone", marks=nightly)]


@pytest.mark.parametrize("device", DEVICES)
def test_the_chat_page_has_no_fault_in_any_state(
    slow_server: Server, new_page: Callable[..., Page], device: dict[str, Any]
) -> None:
    """The states are the empty page, dialogs, the drawer, and all states of an answer; nothing exceeds the window."""
    for name, enter in states.CHAT.items():
        page = new_page(**device)
        enter(Chat(page, slow_server.url).open())
        assert faults(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page.context.close()


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_page_has_no_fault_in_any_state(
    slow_server: Server, new_page: Callable[..., Page], device: dict[str, Any]
) -> None:
    """The states are idle, busy, and with paused requests; the table is open."""
    for name in states.ENGINE:
        page = new_page(**device)
        states.open_engine(page, slow_server.url, name)
        assert faults(page) == [], name
        page.context.close()


def test_a_complete_answer_is_announced_once(chat: Chat) -> None:
    """A polite region gets block after block with formulas as TeX; during generation only the state is announced."""
    begin_with(chat.page, QUEUED)
    chat.send("Wait")
    expect(chat.status).to_have_text("2nd in line")
    chat.stop.click()
    begin_with(chat.page, QUEUED, delta("One "))
    chat.send("Count")
    expect(chat.status).to_have_text("Answering")
    announced = chat.page.locator("#spoken")
    expect(announced).to_be_empty()
    chat.stop.click()
    chat.reload()
    answer_with(chat.page, delta("First.\n\nThen \\(x^2\\)."), DONE)
    chat.send("Go on")
    expect(announced.locator("p")).to_have_text(["First.", "Then x^2."])
    expect(announced).to_have_attribute("aria-live", "polite")


def test_the_focus_stays_in_the_conversation(chat: Chat) -> None:
    """The buttons of an example and of Answer again disappear, and the message box gets the focus."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.page.locator(".example").first.click()
    expect(chat.prompt).to_be_focused()
    chat.wait_done()
    chat.answers.last.get_by_role("button", name="Answer again").press("Enter")
    expect(chat.prompt).to_be_focused()


def test_escape_in_a_menu_of_the_drawer_closes_only_the_menu(
    slow_server: Server, new_page: Callable[..., Page]
) -> None:
    """The drawer stays open, and the focus returns to the button."""
    chat = Chat(new_page(**states.PHONE), slow_server.url).open()
    chat.page.locator("#drawer-open").click()
    chat.page.locator("#theme").click()
    expect(chat.page.get_by_role("menu")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("menu")).to_have_count(0)
    expect(chat.page.locator("#app")).to_have_attribute("data-drawer", "")
    expect(chat.page.locator("#theme")).to_be_focused()


def test_a_drawer_closes_when_the_window_becomes_wide(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """When the window becomes wide, such as by turning a phone, the page is usable again."""
    chat = Chat(new_page(viewport={"width": 600, "height": 900}), slow_server.url).open()
    chat.page.locator("#drawer-open").click()
    chat.page.set_viewport_size({"width": 1000, "height": 600})
    expect(chat.page.locator("#main")).to_have_js_property("inert", False)
    expect(chat.page.locator("#scrim")).to_be_hidden()
    chat.prompt.click()
    expect(chat.prompt).to_be_focused()


def test_enter_in_the_search_opens_a_conversation_and_writes_nothing(chat: Chat) -> None:
    """The focus moves to the message box, and the key press does not."""
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
