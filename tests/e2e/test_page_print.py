"""The printed conversation: complete, in light colours, and without the controls of the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, delta
from tests.e2e.test_page_load import FILL

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"


def pages_of(pdf: bytes) -> int:
    """Return the number of pages of a PDF file."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def test_the_whole_conversation_is_printed(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Older messages, long questions and long code have their full height, also those that were never scrolled to."""
    chat = Chat(new_page(), slow_server.url).open()
    chat.page.evaluate(FILL, [1, 60])
    chat.page.add_init_script("window.requestIdleCallback = () => 0; window.cancelIdleCallback = () => {};")
    chat.reload()
    chat.rows.first.get_by_role("link").click()
    code = "\n".join(f"line_{i}()" for i in range(150))
    answer_with(chat.page, delta(f"```python\n{code}\n```"), DONE)
    chat.send("long " * 700)
    chat.wait_done()
    expect(chat.answers.first).to_be_empty()
    pages = pages_of(chat.page.pdf(format="A4"))
    # 60 messages of 8 lines, 60 lines of a question and 150 of code
    assert 12 <= pages <= 30
    chat.page.emulate_media(media="print")
    expect(chat.answers.first.locator(".body")).to_contain_text("Text 0 1")
    cut = chat.page.evaluate(
        """() => [...document.querySelectorAll("body, #app, #main, #scroller, #thread, .bubble, pre")]
            .filter((node) => node.scrollHeight > node.clientHeight + 1).map((node) => node.outerHTML.slice(0, 80))"""
    )
    assert cut == []


def test_controls_are_not_printed(chat: Chat) -> None:
    """The title and the messages are printed in light colours, even with the dark theme."""
    chat.page.locator("#theme").click()
    chat.page.get_by_role("menuitemradio", name="Dark").click()
    answer_with(chat.page, delta("Yes.\n\n```sh\nls\n```"), DONE)
    chat.send("Is it so?")
    chat.wait_done()
    chat.page.emulate_media(media="print")
    for hidden in ("#sidebar", "#composer", "#hint", "#more", "#settings-open", ".tools", ".code-copy", ".timeline"):
        for node in chat.page.locator(hidden).all():
            expect(node).to_be_hidden()
    for shown in ("#title", ".bubble", ".body p", ".body pre"):
        expect(chat.page.locator(shown).first).to_be_visible()
    assert chat.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
