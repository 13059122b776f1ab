"""Previews of HTML and SVG: a document of a model can show itself, and reach nothing else."""

from __future__ import annotations

from collections.abc import Iterator

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


HOSTILE_DIAGRAM = """%%{init: {"securityLevel": "loose", "htmlLabels": true, "flowchart": {"htmlLabels": true},
  "themeCSS": "svg { background: url(https://evil.example/a.png) } @import 'https://evil.example/a.css';"}}%%
graph TD
  A["<img src=https://evil.example/b.png onerror='window.ran = 1'>"] --> B["Link<script>window.ran = 2</script>"]
  B --> C["<iframe src='https://evil.example/frame'></iframe>"]
  C --> D["Leave"]
  click A call alert()
  click B href "javascript:void(window.ran = 3)"
  click D href "https://evil.example/away" _self
"""


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


DIAGRAM = "graph TD\n  A[Start] --> B{Is it so?}\n  B -->|yes| C[End]"


@pytest.mark.parametrize("is_dark", [False, True])
def test_a_diagram_is_drawn_in_the_colours_of_the_page(chat: Chat, is_dark: bool) -> None:
    """Its library loads with the first preview of one, and not before."""
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url) if "mermaid" in request.url else None)
    chat.page.emulate_media(color_scheme="dark" if is_dark else "light")
    answer_with(chat.page, delta(f"```mermaid\n{DIAGRAM}\n```"), DONE)
    chat.send("Draw")
    chat.wait_done()
    expect(chat.text().get_by_role("button", name="Preview")).to_be_visible()
    assert asked == []
    chat.text().get_by_role("button", name="Preview").click()
    frame = chat.page.frame_locator("iframe.preview")
    for text in ("Start", "Is it so?", "yes", "End"):
        expect(frame.locator("svg").get_by_text(text, exact=True)).to_be_visible()
    expect(frame.locator("body")).to_have_class("dark" if is_dark else "")
    assert len(asked) == 2 and asked[1].endswith("/vendor/mermaid/mermaid.tiny.js")


EDGES = "\n".join(f"n{i % 70} --> m{i % 71}" for i in range(250))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph TD\n  A[Start --> B", "Mermaid cannot draw this diagram. Parse error on line"),
        ("A fox runs.", "Mermaid cannot draw this diagram. No diagram type detected"),
        ("graph TD\n" + "\n".join(f"n{i} --> n{i + 1}" for i in range(5_000)), "This diagram is too large"),
        ("graph TD\n" + " & ".join(f"n{i}" for i in range(2_000)), "This diagram is too large"),
        (f"graph TD\n{EDGES}", "at most 200 connections can be drawn"),
        ('%%{init: {"maxEdges": 9000, "maxTextSize": 90000}}%%\n' + f"graph TD\n{EDGES}", "at most 200 connections"),
    ],
)
def test_a_diagram_that_cannot_be_drawn_is_a_sentence(chat: Chat, text: str, words: str) -> None:
    """A wrong or too large one, also if it sets its own limits."""
    frame = preview(chat, "mermaid", text)
    expect(frame.locator("body")).to_contain_text(words)
    expect(frame.locator("svg")).to_have_count(0)


def test_a_preview_that_hangs_is_stopped(chat: Chat) -> None:
    """The page answers meanwhile, as the frame has a process of its own."""
    preview(chat, "html", "<script>for (;;);</script>")
    chat.set_field("seed", "7")
    expect(chat.text()).to_contain_text("The preview took more than ten seconds, and was stopped.")
    expect(chat.page.locator("iframe")).to_have_count(0)


def test_other_code_has_no_preview(chat: Chat) -> None:
    answer_with(chat.page, delta("```python\nprint(1)\n```\n\n```\n<b>text</b>\n```"), DONE)
    chat.send("Draw")
    chat.wait_done()
    expect(chat.text().locator(".code")).to_have_count(2)
    expect(chat.text().get_by_role("button", name="Preview")).to_have_count(0)


@pytest.fixture
def watched(slow_server: Server, browser: Browser) -> Iterator[tuple[Chat, list[str]]]:
    """Yield a page, and the list of requests that no policy has blocked."""
    context = browser.new_context()
    chat = Chat(context.new_page(), slow_server.url).open()
    chat.wait_models()
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(body="secret", headers={"access-control-allow-origin": "*"})

    for address in ("https://evil.example/**", "**/v1/models", "**/favicon.ico"):
        context.route(address, answer)
    yield chat, asked
    context.close()


def test_a_hostile_diagram_reaches_nothing(watched: tuple[Chat, list[str]]) -> None:
    """Its labels, links, styles and settings run no script, load nothing and lead nowhere."""
    chat, asked = watched
    address = chat.page.url
    frame = preview(chat, "mermaid", HOSTILE_DIAGRAM)
    nodes = frame.locator("svg .node")
    expect(nodes).to_have_count(4)
    expect(frame.locator("img, iframe, script:not([nonce])")).to_have_count(0)
    for node in nodes.all()[:3]:
        node.click()
    chat.page.wait_for_timeout(300)
    assert frame.locator("body").evaluate("window.ran") is None
    nodes.last.click()
    expect(nodes).to_have_count(0)  # the frame has left, for a page that says that it was blocked
    assert asked == []
    assert len(chat.page.context.pages) == 1
    assert chat.page.url.startswith(address)


def test_a_hostile_document_reaches_nothing(watched: tuple[Chat, list[str]]) -> None:
    """Neither a network, nor the page, its storage, another window or another address."""
    chat, asked = watched
    pages = len(chat.page.context.pages)
    address = chat.page.url
    frame = preview(chat, "html", HOSTILE)
    expect(frame.locator("#p")).to_have_text("found: ")
    expect(frame.locator("#p")).to_have_count(0)  # the frame has left, for a page that says that it was blocked
    chat.page.wait_for_timeout(300)
    assert asked == []
    assert len(chat.page.context.pages) == pages
    assert chat.page.url.startswith(address)
