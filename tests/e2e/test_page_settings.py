"""The settings sheet: presets, the line of settings in force, and texts that are not valid."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import SHORT, Chat, answer_with, delta

pytestmark = pytest.mark.browser


def open_settings(chat: Chat) -> None:
    """Open the settings sheet."""
    chat.page.locator("#settings-open").click()
    expect(chat.page.locator("#settings")).to_be_visible()


def save(chat: Chat, name: str) -> None:
    """Save the settings in the open sheet as a preset."""
    chat.page.locator("#settings [name=preset]").fill(name)
    chat.page.get_by_role("button", name="Save preset").click()


def test_an_invalid_text_is_gone_when_the_sheet_opens_again(chat: Chat) -> None:
    """The field shows the value in force, without an error."""
    chat.set_field("temperature", "0.5")
    chat.set_field("temperature", "9")
    open_settings(chat)
    expect(chat.page.locator("#settings [name=temperature]")).to_have_value("0.5")
    expect(chat.page.locator("#error-temperature")).to_be_hidden()
    chat.page.locator("#settings [name=temperature]").fill("7")
    chat.page.get_by_role("button", name="Reset all").click()
    expect(chat.page.locator("#settings [name=temperature]")).to_have_value("")
    expect(chat.page.locator("#error-temperature")).to_be_hidden()
    expect(chat.page.get_by_role("slider", name="Temperature")).to_have_value("0.6")


def test_presets_are_saved_chosen_and_deleted(chat: Chat) -> None:
    """A preset has all settings, survives a reload, and is shown as pressed while its settings are in force."""
    page = chat.page
    open_settings(chat)
    page.locator("#system-prompt").fill("Write in verse.")
    page.locator("#settings [name=temperature]").fill("1,2")
    page.locator("#settings [name=preset]").fill("Poetry")
    page.locator("#settings [name=preset]").press("Enter")
    poetry = page.get_by_role("button", name="Poetry", exact=True)
    expect(poetry).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#settings [name=preset]")).to_have_value("")
    page.locator("#settings [name=temperature]").fill("0")
    expect(poetry).to_have_attribute("aria-pressed", "false")
    save(chat, "Facts")
    chat.reload()
    open_settings(chat)
    expect(page.locator("#system-prompt")).to_have_value("")
    poetry.click()
    expect(page.locator("#system-prompt")).to_have_value("Write in verse.")
    expect(page.locator("#settings [name=temperature]")).to_have_value("1.2")
    expect(page.locator("#settings [name=max_tokens]")).to_have_value(str(SHORT))
    page.locator("#settings [name=temperature]").fill("0.4")
    save(chat, "Poetry")
    page.get_by_role("button", name="Facts", exact=True).click()
    expect(page.locator("#settings [name=temperature]")).to_have_value("0")
    poetry.click()
    expect(page.locator("#settings [name=temperature]")).to_have_value("0.4")
    page.get_by_role("button", name="Delete preset Poetry").click()
    expect(poetry).to_have_count(0)
    expect(page.locator("#settings [name=preset]")).to_be_focused()
    expect(page.locator("#settings [aria-pressed]")).to_have_text(["Facts"])


def test_a_changed_conversation_leaves_its_preset_as_it_is(chat: Chat) -> None:
    """Settings that are changed after a preset was chosen, or all were reset, are not those of the next choice or reset."""
    temperature = chat.page.locator("#settings [name=temperature]")
    open_settings(chat)
    temperature.fill("0.4")
    save(chat, "Calm")
    for other in ("0.9", "0.1"):
        chat.page.get_by_role("button", name="Calm", exact=True).click()
        expect(temperature).to_have_value("0.4")
        temperature.fill(other)
        chat.page.get_by_role("button", name="Reset all").click()
        expect(temperature).to_have_value("")
        temperature.fill(other)


def test_presets_are_bounded(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """More than twenty, one that is too long and one without a name are refused, and the reason is shown."""
    page = new_page()
    presets = [{"name": f"Preset {i}", "system": "", "sampling": {"seed": i}} for i in range(40)]
    page.add_init_script(f"localStorage['carousel.presets'] ??= {json.dumps(json.dumps(presets))}")
    chat = Chat(page, slow_server.url).open()
    open_settings(chat)
    shown, error = page.locator("#settings [aria-pressed]"), page.locator("#error-preset")
    expect(shown).to_have_count(20)
    save(chat, "One more")
    expect(error).to_have_text("There are 20 presets, which is the limit; delete one first.")
    page.get_by_role("button", name="Delete preset Preset 7", exact=True).click()
    expect(error).to_be_hidden()
    save(chat, " ")
    expect(error).to_have_text("A name, please.")
    page.locator("#system-prompt").fill("long " * 10_000)
    save(chat, "Long")
    expect(error).to_contain_text("too long for a preset, which has at most 32768 characters")
    page.locator("#system-prompt").fill("short")
    save(chat, "Long")
    expect(error).to_be_hidden()
    expect(shown).to_have_count(20)


@pytest.mark.parametrize(
    "stored", ["7", "null", "{", '[null, 7, {"name": "a"}, {"name": "b", "system": 1, "sampling": {}}]']
)
def test_a_broken_list_of_presets_is_an_empty_one(
    slow_server: Server, new_page: Callable[..., Page], stored: str
) -> None:
    """The sheet opens, and a new preset replaces what was stored."""
    page = new_page()
    page.add_init_script(f"localStorage['carousel.presets'] ??= {stored!r}")
    chat = Chat(page, slow_server.url).open()
    open_settings(chat)
    expect(page.locator("#settings [aria-pressed]")).to_have_count(0)
    save(chat, "<b>Mine</b>")
    expect(page.locator("#settings [aria-pressed]")).to_have_text(["<b>Mine</b>"])


def test_a_line_names_the_settings_that_differ_from_the_defaults(chat: Chat) -> None:
    """It is hidden while none does, opens the sheet, and follows the defaults."""
    line = chat.page.locator("#in-force")
    expect(line).to_be_hidden()
    chat.set_field("temperature", "0.2")
    expect(line).to_have_text("Temperature 0.2")
    line.click()
    chat.page.locator("#system-prompt").fill("Be brief.")
    chat.page.locator("#settings .fold summary").click()
    chat.page.get_by_role("button", name="Insert an example").click()
    chat.page.get_by_label("Require a call for each message").check()
    chat.page.locator("#settings [name=max_tokens]").fill("")
    chat.page.locator("#settings [name=stop]").fill("END\n\\n")
    chat.page.keyboard.press("Escape")
    expect(line).to_have_text(
        'System prompt, longest answer default, temperature 0.2, stop at "END" or "\\n", 1 tool, required calls'
    )
    expect(line).to_be_focused()
    chat.page.locator("#new").click()
    expect(line).to_be_hidden()
    chat.set_field("temperature", "0.6")
    expect(line).to_be_hidden()  # the value that the server uses without it
    chat.set_field("temperature", "0.7")
    line.click()
    chat.page.get_by_role("button", name="Use for new conversations").click()
    expect(line).to_be_hidden()
    open_settings(chat)
    chat.page.get_by_role("button", name="Reset all").click()
    chat.page.keyboard.press("Escape")
    expect(line).to_have_text("Longest answer default, temperature 0.6")


def test_figures_can_be_hidden_and_the_column_widened(chat: Chat) -> None:
    """Both choices hold after a reload; notes, such as that an answer was stopped, stay."""
    answer_with(
        chat.page, delta("Yes."), {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}, "data: [DONE]"
    )
    chat.send("Is it so?")
    chat.wait_done()
    figures = chat.answers.last.locator(".figures")
    expect(figures.locator("span").first).to_be_visible()
    width = chat.page.locator("#composer").bounding_box()["width"]  # type: ignore[index]
    for _ in range(2):
        chat.page.locator("#help-button").click()
        chat.page.get_by_label("Figures under answers").set_checked(False)
        chat.page.get_by_label("Wide column").set_checked(True)
        chat.page.keyboard.press("Escape")
        expect(figures.locator("span").first).to_be_hidden()
        expect(figures.get_by_text("cut at the token limit")).to_be_visible()
        assert chat.page.locator("#composer").bounding_box()["width"] > width  # type: ignore[index]
        chat.reload()
