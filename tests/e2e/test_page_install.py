"""The chat page can be installed, and opens without its server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import Chat

pytestmark = pytest.mark.browser


def test_old_conversations_open_without_the_server(new_page: Callable[..., Page]) -> None:
    """The page and its texts are there, what cannot be reached is named, and a server that is back is asked again."""
    server = Server.start("--max-num-seqs", "4", "--kernels", "torch")
    page = new_page(service_workers="allow")
    chat = Chat(page, server.url).open()
    page.evaluate("navigator.serviceWorker.ready.then(() => {})")
    page.reload()  # through the service worker
    chat.send("Tell me a story about a fox")
    chat.wait_done()
    text = chat.text().inner_text()
    server.stop()
    page.reload()
    expect(page.locator("html[data-ready]")).to_be_attached()
    expect(chat.text()).to_have_text(text)
    expect(chat.rows).to_have_count(1)
    assert page.evaluate("caches.open('carousel').then((cache) => cache.keys()).then((keys) => keys.length)") < 20


def test_a_browser_finds_a_name_and_icons(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """The manifest is valid JSON with addresses that exist, below the path of the page."""
    page = new_page()
    Chat(page, slow_server.url).open()
    manifest = page.evaluate("fetch(document.querySelector('link[rel=manifest]').href).then((answer) => answer.json())")
    assert manifest["name"] == "Carousel" and manifest["display"] == "standalone"
    assert manifest["start_url"] == manifest["scope"] == "/"
    for icon in manifest["icons"]:
        assert (
            page.evaluate("(src) => fetch(src).then((answer) => answer.headers.get('content-type'))", icon["src"])
            == icon["type"]
        )
