"""Replay: the same answer with one setting changed, shown as a difference."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from tests.e2e.conftest import Run
from tests.e2e.page import Chat, answer_with, delta
from tests.e2e.test_page_tree import menu

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
REPLAY = "Replay with the present settings"
SPLIT = """return arg.map(([before, after]) => {
    const parts = m.difference(before, after);
    const text = (...kinds) => parts.filter(([kind]) => kinds.includes(kind)).map(([, text]) => text).join("");
    return [text("same", "removed"), text("same", "added"), text("same")];
});"""


def test_a_replay_with_the_same_settings_is_the_same_text(chat: Chat) -> None:
    """The page gives each answer a seed, so that a real server writes it once more, character by character."""
    chat.send("Tell me a story about a fox")
    chat.wait_done()
    text = chat.text().inner_text()
    menu(chat, chat.answers.last, REPLAY)
    expect(chat.answers.get_by_role("group", name="Version 2 of 2")).to_be_visible()
    chat.wait_done()
    assert chat.text().inner_text() == text
    expect(chat.answers.last.locator(".difference summary")).to_have_text("The same settings: the same text")


def test_a_changed_setting_and_its_words_are_named(chat: Chat) -> None:
    """The seed stays, and the difference is there after a reload."""
    answer_with(chat.page, delta("The fox ran over the hill."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as first:
        chat.send("Tell me a story about a fox")
    chat.wait_done()
    chat.set_field("temperature", "0.2")
    chat.page.unroute_all()
    answer_with(chat.page, delta("The fox walked over the hill."), DONE)
    with chat.page.expect_request("**/v1/chat/completions") as second:
        menu(chat, chat.answers.last, REPLAY)
    chat.wait_done()
    assert second.value.post_data_json["seed"] == first.value.post_data_json["seed"]
    assert second.value.post_data_json["temperature"] == 0.2
    chat.reload()
    difference = chat.answers.last.locator(".difference")
    expect(difference.locator("summary")).to_have_text("Temperature 0.2: another text")
    difference.locator("summary").click()
    expect(difference.locator("del")).to_have_text("ran")
    expect(difference.locator("ins")).to_have_text("walked")


def test_two_answers_have_two_seeds(chat: Chat) -> None:
    """Answer again is no replay, and a seed of the settings is that of every answer."""
    seeds = []
    answer_with(chat.page, delta("Yes."), DONE)
    for name in ("", "Answer again"):
        with chat.page.expect_request("**/v1/chat/completions") as sent:
            chat.answers.last.get_by_role("button", name=name).click() if name else chat.send("Is it so?")
        chat.wait_done()
        seeds.append(sent.value.post_data_json["seed"])
    assert seeds[0] != seeds[1]
    expect(chat.answers.last.locator(".difference")).to_be_hidden()


def test_a_difference_has_both_texts(run: Run) -> None:
    """For random texts: without what was added it is the first, without what was removed the second, and most is shared."""

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(
            st.tuples(*[st.lists(st.sampled_from(["a", "b", " ", "\n", "<b>", "狐"]), max_size=30)] * 2), max_size=20
        )
    )
    def check(pairs: list[tuple[list[str], list[str]]]) -> None:
        texts = [("".join(before), "".join(after)) for before, after in pairs]
        for (before, after), (first, second, shared) in zip(texts, run("difference.js", SPLIT, texts), strict=True):
            assert (first, second) == (before, after)
            assert before != after or shared == before

    check()


def test_long_texts_are_compared_without_a_hang(run: Run) -> None:
    """Two texts of 100,000 words that share no order differ as wholes between their first and last words."""
    words = [f"w{number}" for number in range(100_000)]
    before, after = " ".join(["start", *words, "end"]), " ".join(["start", *reversed(words), "end"])
    [[first, second, shared]] = run("difference.js", SPLIT, [[before, after]])
    assert (first, second) == (before, after) and re.fullmatch(r"start\s+end|start  end", shared.strip())
