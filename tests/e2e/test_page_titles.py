"""Titles of conversations by the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Server
from tests.e2e.conftest import Run
from tests.e2e.page import Chat, delta, sse

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"


@pytest.fixture
def named(slow_server: Server, new_page: Callable[..., Page]) -> Chat:
    """Return an open page that lets the model name conversations."""
    page = new_page()
    page.context.add_init_script("localStorage['carousel.titles'] = 'true'")
    return Chat(page, slow_server.url).open()


def answer(chat: Chat, title: str | None) -> list[dict[str, Any]]:
    """Answer questions, and requests for a title with this one or an error. Return the list of the latter."""
    asked: list[dict[str, Any]] = []
    headers = {"content-type": "text/event-stream", "x-carousel-stream": "s"}

    def fulfill(route: Route) -> None:
        body = route.request.post_data_json
        if body.get("stream"):
            return route.fulfill(status=200, body=sse(delta("Yes."), DONE), headers=headers)
        asked.append(body)
        if title is None:
            return route.fulfill(status=503, json={"error": {"message": "Full.", "code": "server_full"}})
        return route.fulfill(json={"choices": [{"message": {"content": title}}]})

    chat.page.route("**/v1/chat/completions", fulfill)
    return asked


def test_the_first_answer_of_a_conversation_gives_it_a_title(named: Chat) -> None:
    """It is asked for in the lowest tier, once, and kept over a reload."""
    asked = answer(named, '**"Colours of the sky."**\nIt is about colours.')
    named.send("Is the sky blue?")
    expect(named.page.locator("#title")).to_have_text("Colours of the sky")
    assert [body["service_tier"] for body in asked] == ["flex"]
    assert [turn["content"] for turn in asked[0]["messages"]][:2] == ["Is the sky blue?", "Yes."]
    named.send("Is it so at night?")
    named.wait_done()
    named.reload()
    expect(named.rows).to_have_text(["Colours of the sky"])
    assert len(asked) == 1


def test_a_name_by_the_user_stays(named: Chat) -> None:
    """It is neither replaced by a title that arrives later, nor asked for."""
    held: list[Route] = []
    answer(named, "A title")
    named.page.route(
        "**/v1/chat/completions",
        lambda route: route.fallback() if route.request.post_data_json.get("stream") else held.append(route),
    )
    named.send("Is the sky blue?")
    named.wait_done()
    named.rows.first.hover()
    named.rows.first.get_by_role("button").click()
    named.page.get_by_role("menuitem", name="Rename").click()
    named.page.get_by_role("textbox", name="Title").fill("Mine")
    named.page.keyboard.press("Enter")
    held[0].fulfill(json={"choices": [{"message": {"content": "A title"}}]})
    named.page.wait_for_timeout(300)
    expect(named.page.locator("#title")).to_have_text("Mine")


def test_without_a_title_the_first_line_stays(named: Chat, chat: Chat) -> None:
    """The request is refused, or the user does not want titles."""
    asked = answer(named, None)
    named.send("Is the sky blue?")
    named.wait_done()
    expect(named.page.locator("#title")).to_have_text("Is the sky blue?")
    expect(named.page.locator(".toast")).to_have_count(0)
    assert len(asked) == 1
    unasked = answer(chat, "A title")
    chat.send("Is the sky blue?")
    chat.wait_done()
    assert unasked == []


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Title: The sky", "The sky"),
        ("# The sky\n\nmore", "The sky"),
        ("Here's a possible title: \"The sky", "The sky"),
        ("„Der Himmel“", "Der Himmel"),
        ("", ""),
        ("I'm ready to help. What's your next question?", ""),
        ("Here are some tips for a story:", ""),
        ("42", ""),
        ("word " * 40, ""),
        ("<b>x</b> 空の色", "<b>x</b> 空の色"),
    ],
)
def test_a_title_is_a_plain_line(run: Run, text: str, title: str) -> None:
    assert run("model_title.js", "return m.titleIn(arg);", text) == title


def test_the_demo_model_names_a_conversation(slow_server: Server, named: Chat) -> None:
    """A real model is asked after a real answer; what it writes is one line."""
    with named.page.expect_response(
        lambda response: "chat/completions" in response.url and not response.request.post_data_json.get("stream")
    ) as answered:
        named.send("Tell me a story about a fox")
    assert answered.value.ok
    assert "\n" not in (named.page.locator("#title").text_content() or "")
