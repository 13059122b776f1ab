"""Markdown in a real browser: hostile text is inert, streaming equals rendering at once, finished blocks stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

RENDER = """async ([base, text]) => {
    const { renderWhole } = await import(`${base}/static/js/render.js`);
    const root = document.createElement("div");
    root.className = "prose";
    const thread = document.getElementById("thread");
    thread.hidden = false;
    thread.replaceChildren(root);
    renderWhole(root, text);
    return root.innerHTML;
}"""


class Renderer:
    """The page's own Markdown module, called by the tests; records every request of the page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))

    def render(self, text: str) -> str:
        return str(self.page.evaluate(RENDER, [self.url, text]))

    def foreign_requests(self) -> list[str]:
        return [url for url in self.requests if not url.startswith(self.url)]


@pytest.fixture(scope="module")
def renderer(server: Any, browser: Browser) -> Iterator[Renderer]:
    """Yield a renderer on one page for all texts."""
    page = browser.new_page()
    page.goto(server.url + "/")
    expect(page.locator("html[data-ready]")).to_be_attached()
    yield Renderer(page, server.url)
    page.close()


HOSTILE = [
    '<img src=x onerror="window.pwned=1">',
    "<script>window.pwned=1</script>",
    '<svg onload="window.pwned=1"><animate onbegin=window.pwned=1 attributeName=x dur=1s></svg>',
    '<iframe src="https://evil.example/"></iframe>',
    '<a href="javascript:window.pwned=1">x</a>',
    "[x](javascript:window.pwned=1)",
    "[x](java\tscript:window.pwned=1)",
    "[x](&#106;avascript:window.pwned=1)",
    "[x](data:text/html,<script>window.pwned=1</script>)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](//evil.example) [w](/v1/models)",
    "<javascript:window.pwned=1>",
    "![x](https://evil.example/x.png)",
    "![x](data:image/svg+xml,<svg/onload=window.pwned=1>)",
    '[x](https://a.example "onmouseover=window.pwned=1")',
    '[x](https://a.example/"onmouseover="window.pwned=1)',
    "```<img src=x onerror=window.pwned=1>\n</code></pre><img src=x onerror=window.pwned=1>\n```",
    "- ```html\n  <img src=x onerror=window.pwned=1>\n  ```",
    "| <img src=x onerror=window.pwned=1> | b |\n|--|--|\n| <style>*{display:none}</style> | <form action=//evil.example> |",
    "<style>@import 'https://evil.example/x.css';</style>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1>",
    "<base href=https://evil.example/><link rel=stylesheet href=https://evil.example/x.css>",
    "<form><input name=innerHTML><input name=attributes></form>",
    "<!--<img src=x onerror=window.pwned=1>-->",
    "# <img src=x onerror=window.pwned=1>",
    "[x]: javascript:window.pwned=1\n\n[x]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_inert(renderer: Renderer, text: str) -> None:
    """Nothing runs or is loaded, and there are no elements or attributes except the allowed ones."""
    renderer.render(text)
    expect(renderer.page.locator("#thread .prose")).to_be_attached()
    bad = renderer.page.evaluate("""() => {
        const allowed = new Set(["DIV", "P", "BR", "STRONG", "EM", "DEL", "CODE", "PRE", "A", "UL", "OL", "LI", "BLOCKQUOTE", "HR",
            "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "H1", "H2", "H3", "H4", "H5", "H6", "SPAN", "BUTTON", "svg", "use"]);
        const found = [];
        for (const node of document.querySelectorAll("#thread .prose *")) {
            if (!allowed.has(node.tagName)) found.push(node.tagName);
            for (const { name, value } of node.attributes) {
                if (/^on|^style$|^src/.test(name)) found.push(`${name}=${value}`);
                if (name === "href" && node.tagName === "A" && !/^(https?:|mailto:)/.test(value)) found.push(value);
            }
            const outside = node.target === "_blank" && node.rel?.includes("noopener");
            if (node.tagName === "A" && !outside) found.push(node.outerHTML);
        }
        return found;
    }""")
    assert bad == []
    assert renderer.page.evaluate("window.pwned") is None
    assert renderer.foreign_requests() == []


def test_raw_html_is_shown_as_text(renderer: Renderer) -> None:
    """The reader sees the raw text of the model."""
    renderer.render('Look: <img src=x onerror="alert(1)"> and <b>bold</b>')
    expect(renderer.page.locator("#thread .prose")).to_have_text('Look: <img src=x onerror="alert(1)"> and <b>bold</b>')


PATHOLOGICAL = {
    "a line of 1 MB": "a" * 1_000_000,
    "a code line of 1 MB": "```\n" + "x" * 1_000_000,
    "10,000 nested quotes": ">" * 10_000 + " x",
    "10,000 nested quotes with spaces": "> " * 10_000 + "x",
    "quotes that deepen line by line": "\n".join(">" * (i % 1000) + " x" for i in range(2000)),
    "nested lists": "\n".join("  " * (i % 500) + "- a" for i in range(2000)),
    "60,000 brackets": "[" * 60_000,
    "unclosed links": "[a](" * 15_000,
    "unclosed stars": "*a **b " * 8_000,
    "backticks": "`a``b```c" * 6_000,
    "open tags": "<a " * 30_000,
    "an unclosed fence": "```js\n" + "let x = 1;\n" * 20_000,
    "fences without end": "```\n" * 3_000,
    "nothing but lines": "\n" * 300_000,
    "a table of 5,000 rows": "|a|b|\n|-|-|\n" + "|x|y|\n" * 5_000,
    "stars line by line": "\n".join(["*a **b " * 400] * 12),
    "brackets line by line": "\n".join(["[ " * 1500] * 12),
}


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_pathological_text_is_rendered_in_time_and_completely(renderer: Renderer, name: str) -> None:
    """It is rendered completely within a few seconds."""
    text = PATHOLOGICAL[name]
    start = time.monotonic()
    renderer.render(text)
    shown = renderer.page.evaluate("document.querySelector('#thread .prose').textContent.length")
    assert time.monotonic() - start < 8
    letters = sum(text.count(letter) for letter in "abcx")
    assert shown >= letters


SAMPLE = """# Title

A paragraph with **bold**, *slanted*, `code`, ~~gone~~ and [a link](https://example.org/a_(b)).
A second line of it.

1. one
   - inner

   ```python
   def f(): return "in a list"
   ```

2. two

3. three

> quoted
> **more**

| a | b |
|:--|--:|
| 1 | 2 |
| 3 | 4 |

~~~~js
const fence = "```";
~~~~
After the fence, at once.

- [ ] open
- [x] done

---
The end with a [reference] and 2 * 3 * 4.
"""

GROW = """async ([base, text, size]) => {
    const { MarkdownStream } = await import(`${base}/static/js/render.js`);
    const root = document.createElement("div");
    document.getElementById("thread").replaceChildren(root);
    const stream = new MarkdownStream(root);
    for (let at = 0; at < text.length; at += size) {
        stream.write(text.slice(at, at + size));
        await new Promise(requestAnimationFrame);
    }
    stream.finish();
    return root.innerHTML;
}"""
PLAIN = r"""(html) => { const root = document.createElement("div"); root.innerHTML = html;
    for (const code of root.querySelectorAll("code")) code.textContent = code.textContent; return root.innerHTML; }"""


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_streamed_text_equals_whole_text(renderer: Renderer, size: int) -> None:
    """The result does not depend on the chunks, except for colours, which are added when the browser is idle."""
    text = SAMPLE if size > 1 else SAMPLE[: SAMPLE.index("> quoted")]
    whole = renderer.page.evaluate(PLAIN, renderer.render(text))
    streamed = renderer.page.evaluate(PLAIN, renderer.page.evaluate(GROW, [renderer.url, text, size]))
    assert streamed == whole


def test_finished_blocks_are_never_changed(renderer: Renderer) -> None:
    """While the tail grows, closed blocks keep their nodes, and a selection inside them stays."""
    result = renderer.page.evaluate(
        """async ([base]) => {
        const { MarkdownStream } = await import(`${base}/static/js/render.js`);
        const root = document.createElement("div");
        document.getElementById("thread").replaceChildren(root);
        const stream = new MarkdownStream(root);
        const frame = () => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 20));
        stream.write("First *paragraph* here.\\n\\n```py\\nx = 1\\n```\\n\\nSecond");
        await frame();
        const nodes = [...root.querySelectorAll(".block")].slice(0, 2);
        getSelection().selectAllChildren(nodes[0]);
        let changes = 0;
        const watch = new MutationObserver((list) => (changes += list.length));
        watch.observe(nodes[0], { childList: true, subtree: true, characterData: true });
        for (const text of [" paragraph", " **with", " bold** end.\\n\\n", "- a\\n- b\\n\\n", "Third."]) {
            stream.write(text);
            await frame();
        }
        stream.finish();
        return { same: nodes.every((node) => node.isConnected), changes, selected: String(getSelection()).trim() };
    }""",
        [renderer.url],
    )
    assert result == {"same": True, "changes": 0, "selected": "First paragraph here."}


def test_a_selection_in_the_growing_block_survives_its_growth(renderer: Renderer) -> None:
    """The last paragraph grows in place: its text node is extended, not replaced."""
    selected = renderer.page.evaluate(
        """async ([base]) => {
        const { MarkdownStream } = await import(`${base}/static/js/render.js`);
        const root = document.createElement("div");
        document.getElementById("thread").replaceChildren(root);
        const stream = new MarkdownStream(root);
        const frame = () => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 20));
        stream.write("Once upon a time");
        await frame();
        const node = root.querySelector("p").firstChild;
        getSelection().setBaseAndExtent(node, 0, node, 4);
        stream.write(" there was a fox");
        await frame();
        return String(getSelection());
    }""",
        [renderer.url],
    )
    assert selected == "Once"


def test_code_is_coloured_once_closed_and_can_be_copied(renderer: Renderer) -> None:
    """A closed block gets its colours and a copy button with a label."""
    renderer.render("```python\ndef f():\n    return 1\n```\n")
    expect(renderer.page.locator("#thread .hljs-keyword").first).to_have_text("def")
    expect(renderer.page.locator("#thread").get_by_role("button", name="Copy")).to_be_visible()


@pytest.mark.parametrize(
    ("beginning", "shown"),
    [
        ("Some **bold te", "Some bold te"),
        ("Some **", "Some"),
        ("A `code sp", "A code sp"),
        ("A [link](https://exa", "A link"),
        ("A [li", "A li"),
        ("Text\n\n-", "Text"),
        ("Text\n\n``", "Text"),
        ("Text\n\n| a | b", "Text"),
        ("1. one\n\n2", "1. one"),
        ("snake_case_na", "snake_case_na"),
        ("2 * 3", "2 * 3"),
        ("*slanted", "slanted"),
    ],
)
def test_an_unfinished_tail_does_not_show_its_markup(renderer: Renderer, beginning: str, shown: str) -> None:
    """Unclosed markup is shown in its final form or not at all."""
    text = renderer.page.evaluate(
        """async ([base, text]) => {
        const { MarkdownStream } = await import(`${base}/static/js/render.js`);
        const root = document.createElement("div");
        document.getElementById("thread").replaceChildren(root);
        new MarkdownStream(root).write(text);
        await new Promise((done) => setTimeout(() => requestAnimationFrame(done), 30));
        return root.innerText;
    }""",
        [renderer.url, beginning],
    )
    assert " ".join(text.split()) == shown.replace("1. one", "one")
