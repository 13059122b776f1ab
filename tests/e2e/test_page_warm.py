"""Conversations that the server still has in its cache, in the page's list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Server
from tests.e2e.page import Chat
from tests.limits import HANG_SECONDS

WARM = "/v1/page/warm"
LONG_QUESTION = "Tell me a story about a fox. " * 180
SENTENCE = r"Opens in [\d.]+ s instead of [\d.]+ s"
PAGES = 128  # of the cache, as many as the context has
SLOWER = 1000  # times as slow as it is would this machine be, so that any machine saves a time worth a word


@pytest.fixture
def small(new_page: Callable[..., Page]) -> Iterator[Chat]:
    """Yield an open page of a slow server with a small cache."""
    server = Server.start("--max-num-seqs", "2", "--kernels", "torch", "--num-pages", str(PAGES))
    yield Chat(new_page(), server.url).open()
    server.stop()
    server.assert_no_traceback()


def fill_cache(url: str) -> None:
    """Send prompts that take all pages."""
    for number in range(3):
        body = {"prompt": f"{number} and so on, " * 250, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=HANG_SECONDS).status_code == 200


def slow_down(page: Page) -> None:
    """Multiply the times in the server's answers."""

    def slower(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        for found in body["requests"].values():
            found |= {name: SLOWER * found[name] for name in ("first_token_ms", "cold_first_token_ms")}
        route.fulfill(response=answer, json=body)

    page.route(f"**{WARM}", slower)


def show_again(page: Page) -> None:
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_conversation_is_warm_until_other_prompts_fill_the_cache(small: Chat):
    """Its row says what that saves, also where the pointer is."""
    slow_down(small.page)
    small.send(LONG_QUESTION)
    small.wait_done()
    dot = small.rows.get_by_role("img")
    expect(dot).to_have_accessible_name(re.compile(rf"^{SENTENCE}$"))
    expect(small.rows.get_by_role("link")).to_have_attribute("title", re.compile(rf"\n{SENTENCE}$"))
    fill_cache(small.url)
    show_again(small.page)
    expect(dot).to_have_count(0)


def test_a_hidden_tab_asks_nothing(chat: Chat):
    """One that is shown asks at once, and then every 30 s."""
    chat.send("Hello")
    chat.wait_done()
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url) if request.url.endswith(WARM) else None)
    chat.page.clock.install()
    chat.page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    show_again(chat.page)
    chat.page.clock.run_for(100_000)
    assert asked == []
    chat.page.evaluate("delete document.hidden")
    with chat.page.expect_request(f"**{WARM}"):
        show_again(chat.page)
    chat.page.clock.run_for(29_000)
    assert len(asked) == 1
    with chat.page.expect_request(f"**{WARM}"):
        chat.page.clock.run_for(1000)
    assert len(asked) == 2


def test_a_list_without_answers_asks_nothing(chat: Chat):
    """Nor does a new page."""
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url) if request.url.endswith(WARM) else None)
    show_again(chat.page)
    chat.reload()
    chat.wait_models()
    assert asked == []
