"""Previews of HTML and SVG: a document of a model can show itself, and reach nothing else."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, FrameLocator, Route, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
HOSTILE = """<p id="p">before</p>
<img src="https://evil.example/a.png"><link rel="stylesheet" href="https://evil.example/a.css">
<iframe src="https://evil.example/frame"></iframe>
<form id="f" action="https://evil.example/form"></form>
<script>
const found = [];
const probe = (name, run) => { try { run(); found.push(name); } catch {} };
probe("parent", () => parent.document.body);
probe("top", () => { top.location = "https://evil.example/top"; });
probe("storage", () => localStorage.length);
probe("cookie", () => document.cookie);
document.getElementById("f").submit();
open("https://evil.example/popup");
fetch("https://evil.example/x").then(() => found.push("fetch"), () => {});
fetch("/v1/models").then(() => found.push("own fetch"), () => {});
new Image().src = "/favicon.ico";
setTimeout(() => { document.getElementById("p").textContent = "found: " + found.join(); }, 300);
setTimeout(() => { location = "https://evil.example/away"; }, 2500);
</script>"""


def preview(chat: Chat, lang: str, text: str) -> FrameLocator:
    """Show an answer with a code block, and open its preview."""
    answer_with(chat.page, delta(f"```{lang}\n{text}\n```"), DONE)
    chat.send("Draw")
    chat.wait_done()
    chat.text().get_by_role("button", name="Preview").click()
    return chat.page.frame_locator("iframe.preview")


def test_a_document_is_shown_with_its_styles_and_scripts(chat: Chat) -> None:
    """A second click closes it; the code and its copy button stay."""
    text = "<style>b { color: rgb(1, 2, 3) }</style><b>Hello</b><script>document.body.append(' world')</script>"
    frame = preview(chat, "html", text)
    expect(frame.locator("body")).to_have_text("Hello world")
    expect(frame.locator("b")).to_have_css("color", "rgb(1, 2, 3)")
    chat.text().get_by_role("button", name="Preview").click()
    expect(chat.page.locator("iframe")).to_have_count(0)
    expect(chat.text().locator("code")).to_contain_text("Hello")


def test_a_drawing_is_shown(chat: Chat) -> None:
    frame = preview(chat, "svg", "<svg viewBox='0 0 10 10'><circle r='4' cx='5' cy='5'/></svg>")
    expect(frame.locator("circle")).to_be_visible()


def test_other_code_has_no_preview(chat: Chat) -> None:
    answer_with(chat.page, delta("```python\nprint(1)\n```\n\n```\n<b>text</b>\n```"), DONE)
    chat.send("Draw")
    chat.wait_done()
    expect(chat.text().locator(".code")).to_have_count(2)
    expect(chat.text().get_by_role("button", name="Preview")).to_have_count(0)


def test_a_hostile_document_reaches_nothing(slow_server: Server, browser: Browser) -> None:
    """Neither a network, nor the page, its storage, another window or another address."""
    context = browser.new_context()
    chat = Chat(context.new_page(), slow_server.url).open()
    chat.wait_models()
    asked: list[str] = []

    def answer(route: Route) -> None:  # of requests that no policy has blocked
        asked.append(route.request.url)
        route.fulfill(body="secret", headers={"access-control-allow-origin": "*"})

    for address in ("https://evil.example/**", "**/v1/models", "**/favicon.ico"):
        context.route(address, answer)
    pages = len(chat.page.context.pages)
    address = chat.page.url
    frame = preview(chat, "html", HOSTILE)
    expect(frame.locator("#p")).to_have_text("found: ")
    expect(frame.locator("#p")).to_have_count(0)  # the frame has left, for a page that says that it was blocked
    chat.page.wait_for_timeout(300)
    assert asked == []
    assert len(chat.page.context.pages) == pages
    assert chat.page.url.startswith(address)
    context.close()
