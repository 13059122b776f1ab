"""Reading aloud and dictation, with voices of the test: browsers without sound have none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, delta
from tests.e2e.test_page_tree import menu

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
VOICES = """
window.said = [];
Object.defineProperty(window, "speechSynthesis", { value: {
    speaking: false,
    speak({ text }) { this.speaking = true; said.push(text); },
    cancel() { this.speaking = false; said.push("(silence)"); },
} });
window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
window.SpeechRecognition = class {
    start() { window.listener = this; }
    stop() { this.onend(); }
};
"""


@pytest.fixture
def voiced(slow_server: Server, new_page: Callable[..., Page]) -> Chat:
    """Return an open page in a browser with voices."""
    page = new_page()
    page.context.add_init_script(VOICES)
    return Chat(page, slow_server.url).open()


def hear(chat: Chat, *parts: str) -> None:
    """Let the recognition report these parts of a speech."""
    chat.page.evaluate(
        "(parts) => listener.onresult({ results: parts.map((transcript) => ({ 0: { transcript } })) })", list(parts)
    )


def test_an_answer_is_read_aloud_block_by_block(voiced: Chat) -> None:
    """Marks are not read, and the menu stops it."""
    answer_with(voiced.page, delta("One **bold** word.\n\n- two\n"), DONE)
    voiced.send("Read")
    voiced.wait_done()
    menu(voiced, voiced.answers.last, "Read aloud")
    assert voiced.page.evaluate("said") == ["(silence)", "One bold word.", "two"]
    menu(voiced, voiced.answers.last, "Stop reading")
    assert voiced.page.evaluate("said.at(-1)") == "(silence)"


def test_a_dictated_text_follows_the_typed_one(voiced: Chat) -> None:
    """It grows while it is heard, and the button ends it."""
    voiced.prompt.fill("Dear fox,")
    button = voiced.page.get_by_role("button", name="Dictate")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    hear(voiced, "how")
    hear(voiced, "how are", " you")
    expect(voiced.prompt).to_have_value("Dear fox, how are you")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    expect(voiced.page.locator("#send")).to_be_enabled()


def test_speaking_stops_the_reading_and_the_answer(voiced: Chat) -> None:
    """At the first sound, before anything is understood."""
    voiced.send_long()
    voiced.wait_started()
    voiced.page.get_by_role("button", name="Dictate").click()
    voiced.page.evaluate("speechSynthesis.speaking = true; listener.onspeechstart()")
    voiced.wait_done()
    expect(voiced.answers.last.locator(".figures")).to_contain_text("stopped")
    assert voiced.page.evaluate("speechSynthesis.speaking") is False


def test_a_refused_microphone_is_named(voiced: Chat) -> None:
    """And nothing that was typed is lost."""
    voiced.prompt.fill("Dear fox")
    voiced.page.get_by_role("button", name="Dictate").click()
    voiced.page.evaluate("listener.onerror({ error: 'not-allowed' }); listener.onend()")
    expect(voiced.page.locator(".toast")).to_contain_text("not-allowed")
    expect(voiced.prompt).to_have_value("Dear fox")


def test_a_browser_without_recognition_shows_no_microphone(slow_server: Server, new_page: Callable[..., Page]) -> None:
    page = new_page()
    page.context.add_init_script("delete window.webkitSpeechRecognition; delete window.SpeechRecognition;")
    chat = Chat(page, slow_server.url).open()
    expect(chat.page.locator("#dictate")).to_be_hidden()
