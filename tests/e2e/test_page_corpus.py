"""Markdown as models write it: a corpus of snippets with the rendering that chat pages agree on.

The corpus is markdown_corpus.toml. `shown` is simplified HTML, one line for each top-level block: without the page's own
frames and classes, with `<code-block LANGUAGE>` for a framed code block, `<tex>` for a formula, and `<plain>` for text
without Markdown. `SHOW` writes this form.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

CORPUS = Path(__file__).with_name("markdown_corpus.toml")
SNIPPETS: list[dict[str, str]] = tomllib.loads(CORPUS.read_text(encoding="utf-8"))["snippet"]

# Frames are synchronous, so that each character is painted on its own.
SHOW = r"""async ([base, text, size]) => {
    const { MarkdownStream } = await import(`${base}/static/js/render.js`);
    const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    const attributes = (node) => ["href", "title", "start", "align"].filter((name) => node.hasAttribute(name))
        .map((name) => ` ${name}="${node.getAttribute(name)}"`).join("");
    const show = (node) => {
        if (node instanceof Text) return escape(node.data.replace(/\s+/g, " "));
        if (node.matches(".code")) {
            const lang = node.dataset.lang ? ` ${node.dataset.lang}` : "";
            return `<code-block${lang}>${escape(node.querySelector("code").textContent)}</code-block>`;
        }
        if (node.matches(".math")) return `<tex${node.matches(".display") ? " display" : ""}>${escape(node.dataset.tex)}</tex>`;
        const inner = [...node.childNodes].map(show).join("").replace(/ *(<\/?(?:p|ul|ol|li|table|tr|th|td|blockquote|br|alert|footnote)\b[^>]*>) */g, "$1");
        if (node.matches(".table-frame, .footnote-jump, thead, tbody")) return inner;
        if (node.matches(".alert-title")) return "";
        const name = node.matches(".alert") ? "alert" : node.matches(".footnote") ? "footnote" : node.matches(".plain") ? "plain" : node.localName;
        const kind = name === "alert" ? ` ${node.dataset.kind}` : attributes(node);
        return ["br", "hr"].includes(name) ? `<${name}>` : `<${name}${kind}>${inner.trim()}</${name}>`;
    };
    const root = document.createElement("div");
    root.className = "prose";
    document.getElementById("thread").hidden = false;
    document.getElementById("thread").replaceChildren(root);
    const { requestAnimationFrame } = window;
    window.requestAnimationFrame = (paint) => (paint(), 0);
    try {
        const stream = new MarkdownStream(root);
        for (let at = 0; at < text.length; at += size) stream.write(text.slice(at, at + size));
        stream.finish();
    } finally {
        window.requestAnimationFrame = requestAnimationFrame;
    }
    const blocks = [...root.children].flatMap((block) => [...block.children]);
    return blocks.map(show).join("\n");
}"""


@pytest.fixture(scope="module")
def page(server: Any, browser: Browser) -> Iterator[Page]:
    """Yield one page for all snippets."""
    opened = browser.new_page()
    opened.goto(server.url + "/")
    expect(opened.locator("html[data-ready]")).to_be_attached()
    yield opened
    opened.close()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet["name"].replace(" ", "-"))
def test_markdown_of_models_is_shown_as_expected(server: Any, page: Page, snippet: dict[str, str]) -> None:
    """The rendering is the same whether the text arrives whole, in single characters, or in chunks of seven."""
    text, expected = snippet["text"], snippet["shown"]
    for size in (len(text), 1, 7):
        assert page.evaluate(SHOW, [server.url, text, size]) == expected, f"in chunks of {size}"
