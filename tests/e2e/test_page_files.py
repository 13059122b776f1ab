"""Text files in messages: shown with their tokens, sent as text, and kept with the conversation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.page import Chat, answer_with, delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
CSV = "city,degrees\nGhent,18\n"


def attach(chat: Chat, *files: tuple[str, bytes]) -> None:
    """Choose files with the button."""
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Add text files").click()
    chooser.value.set_files([{"name": name, "mimeType": "text/plain", "buffer": data} for name, data in files])


def sent(chat: Chat, text: str) -> list[dict[str, Any]]:
    """Send a message and return those of the request."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.prompt.fill(text)
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.prompt.press("Enter")
    chat.wait_done()
    return list(request.value.post_data_json["messages"])


def test_a_text_file_is_a_chip_and_a_part_of_the_message(chat: Chat) -> None:
    """Its name and its text are sent before the question, also by an edit after a reload, and it can be unfolded."""
    chat.wait_models()
    attach(chat, ("weather.csv", CSV.encode()))
    expect(chat.page.locator("#files .chip")).to_contain_text(re.compile(r"weather\.csv\s+\d+ tokens"))
    content = f"weather.csv:\n```\n{CSV}\n```\n\nHow warm is it?"
    assert [turn["content"] for turn in sent(chat, "How warm is it?")] == [content]
    expect(chat.page.locator("#files")).to_be_hidden()
    chat.reload()
    file = chat.questions.first.locator("details")
    file.locator("summary").click()
    expect(file.locator("pre")).to_have_text(CSV)
    chat.questions.first.hover()
    chat.questions.first.get_by_role("button", name="Edit and send again").click()
    chat.page.get_by_role("textbox", name="Edit message").fill("How cold?")
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.page.keyboard.press("Enter")
    assert request.value.post_data_json["messages"][0]["content"] == content.replace("How warm is it?", "How cold?")


def test_a_file_alone_is_a_message(chat: Chat) -> None:
    """Its name is the title of a new conversation, and what looks like a fence in it ends no block."""
    attach(chat, ("notes.md", b"```\ncode\n```"))
    expect(chat.page.locator("#send")).to_be_enabled()
    assert sent(chat, "")[0]["content"] == "notes.md:\n````\n```\ncode\n```\n````"
    expect(chat.page.locator("#title")).to_have_text("notes.md")


def test_long_pasted_text_becomes_a_file(chat: Chat) -> None:
    """It can be removed again, and short text is pasted as before."""
    paste = """(text) => {
        const transfer = new DataTransfer();
        transfer.setData("text/plain", text);
        const event = new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
        document.querySelector("#prompt").dispatchEvent(event);
        return event.defaultPrevented;
    }"""
    assert not chat.page.evaluate(paste, "word " * 100)
    assert chat.page.evaluate(paste, "word " * 1000)
    chip = chat.page.locator("#files .chip")
    expect(chip).to_contain_text("Pasted text")
    chip.get_by_role("button", name="Remove Pasted text").click()
    expect(chip).to_have_count(0)
    expect(chat.page.locator("#send")).to_be_disabled()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("big.log", b"x" * 1_000_001, "big.log is larger than 1 MB. Nothing was uploaded."),
        ("paper.pdf", b"%PDF-1.7\n\xe2\xe3\xcf\xd3", "paper.pdf is not a text file. Nothing was uploaded."),
        ("zero.bin", b"a\0b", "zero.bin is not a text file. Nothing was uploaded."),
    ],
)
def test_other_files_are_refused_by_name(chat: Chat, name: str, data: bytes, reason: str) -> None:
    """The sentence says why, and a text file beside it is taken."""
    attach(chat, (name, data), ("note.txt", b"a note"))
    expect(chat.page.locator(".toast")).to_have_text(reason)
    expect(chat.page.locator("#files .chip")).to_have_count(1)


@pytest.mark.parametrize("words", [3000, 30_000])
def test_files_beyond_the_context_are_named(chat: Chat, words: int) -> None:
    """Also one that is so long that the server does not count it."""
    attach(chat, ("long.txt", b"word " * words))
    expect(chat.page.locator("#context-note")).to_have_text("The files are longer than the model's context")


def test_at_most_twenty_files(chat: Chat) -> None:
    """Further ones are refused."""
    attach(chat, *[(f"{i}.txt", b"a") for i in range(21)])
    expect(chat.page.locator(".toast")).to_have_text("A message has at most 20 files.")
    expect(chat.page.locator("#files .chip")).to_have_count(20)


def test_files_wait_for_the_end_of_an_answer(chat: Chat) -> None:
    """They stay in the box with a sentence, and are not lost."""
    chat.send_long()
    chat.wait_started()
    attach(chat, ("note.txt", b"a note"))
    chat.prompt.press("Enter")
    expect(chat.page.locator("#composer-note")).to_contain_text("files can be sent when the answer is complete")
    expect(chat.page.locator("#files .chip")).to_have_count(1)
    chat.stop.click()
    chat.wait_done()
    chat.page.unroute_all()
    assert sent(chat, "")[-1]["content"].startswith("note.txt:")


def test_hostile_names_and_texts_are_text(chat: Chat) -> None:
    """No element comes from them."""
    attach(chat, ("<img src=x onerror=alert(1)>.txt", b"<script>alert(1)</script>"))
    expect(chat.page.locator("#files .chip")).to_contain_text("<img src=x onerror=alert(1)>.txt")
    sent(chat, "Look")
    chat.questions.first.locator("summary").click()
    expect(chat.questions.first.locator("pre")).to_have_text("<script>alert(1)</script>")
    assert chat.page.locator("#thread img, #thread script").count() == 0
