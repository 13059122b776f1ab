"""Pages in a real browser, for the tests of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, DEFAULTS, Chat

Run = Callable[..., Any]

expect.set_options(timeout=ANSWER_MS)  # the default of 5 s is too short beside other work


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens pages with empty storage; the test fails if a page has errors."""
    contexts = []
    faults: list[str] = []

    def make(**options: Any) -> Page:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "service_workers": "block", **options}
        )
        contexts.append(context)
        context.set_default_timeout(ANSWER_MS)
        context.add_init_script(DEFAULTS)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None,
        )
        return page

    yield make
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture
def chat(slow_server: Server, new_page: Callable[..., Page]) -> Chat:
    """Return an open chat page in a desktop viewport."""
    return Chat(new_page(), slow_server.url).open()


@pytest.fixture(scope="module")
def run(server: Any, browser: Browser) -> Iterator[Run]:
    """Yield run(module, body, arg), which runs a function body with the imported module of the page as `m`."""
    page = browser.new_page()
    page.goto(server.url + "/")
    expect(page.locator("html[data-ready]")).to_be_attached()
    yield lambda module, body, arg=None: page.evaluate(
        f"async ([base, arg]) => {{ const m = await import(`${{base}}/static/js/{module}`); {body} }}",
        [server.url, arg],
    )
    page.close()
