"""Markdown in a real browser: hostile text is inert, streaming equals rendering at once, finished blocks stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.counted_work import COUNTED

pytestmark = pytest.mark.browser

PREPARE = """
    const { renderWhole } = await import(`${base}/static/js/render.js`);
    const root = document.createElement("div");
    root.className = "prose";
    const thread = document.getElementById("thread");
    thread.hidden = false;
    thread.replaceChildren(root);"""
RENDER = f"async ([base, text]) => {{{PREPARE} renderWhole(root, text); return root.innerHTML; }}"
WORK = f"async ([base, text]) => {{{PREPARE} return ({COUNTED})(() => renderWhole(root, text), root); }}"


class Renderer:
    """The page's own Markdown module, called by the tests; records every request of the page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))

    def render(self, text: str) -> str:
        return str(self.page.evaluate(RENDER, [self.url, text]))

    def work(self, text: str) -> int:
        """Render a text and return the units of work of that."""
        return int(self.page.evaluate(WORK, [self.url, text]))

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
    '[x]: https://a.example "onmouseover=window.pwned=1"\n\n[x]',
    "<sub onclick=window.pwned=1>x</sub> <kbd><img src=x onerror=window.pwned=1></kbd> <sup><script>window.pwned=1</script></sup>",
    "a[^<img/src=x/onerror=window.pwned=1>]\n\n[^<img/src=x/onerror=window.pwned=1>]: <img src=x onerror=window.pwned=1>",
    "> [!NOTE]\n> <img src=x onerror=window.pwned=1>",
    "中**(<img src=x onerror=window.pwned=1>)**文",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_inert(renderer: Renderer, text: str) -> None:
    """Nothing runs or is loaded, and there are no elements or attributes except the allowed ones."""
    renderer.render(text)
    expect(renderer.page.locator("#thread .prose")).to_be_attached()
    bad = renderer.page.evaluate("""() => {
        const allowed = new Set(["DIV", "P", "BR", "STRONG", "EM", "DEL", "CODE", "PRE", "A", "UL", "OL", "LI", "BLOCKQUOTE", "HR",
            "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "H1", "H2", "H3", "H4", "H5", "H6", "SPAN", "BUTTON", "svg", "use",
            "SUB", "SUP", "KBD"]);
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


# Texts of a size, and the sizes.
PATHOLOGICAL: dict[str, tuple[Callable[[int], str], int]] = {
    "a line of 1 MB": (lambda n: "a" * n, 1_000_000),
    "a code line of 1 MB": (lambda n: "```\n" + "x" * n, 1_000_000),
    "10,000 nested quotes": (lambda n: ">" * n + " x", 10_000),
    "10,000 nested quotes with spaces": (lambda n: "> " * n + "x", 10_000),
    "quotes that deepen line by line": (lambda n: "\n".join(">" * (i % 1000) + " x" for i in range(n)), 2_000),
    "nested lists": (lambda n: "\n".join("  " * (i % 500) + "- a" for i in range(n)), 2_000),
    "60,000 brackets": (lambda n: "[" * n, 60_000),
    "unclosed links": (lambda n: "[a](" * n, 15_000),
    "unclosed stars": (lambda n: "*a **b " * n, 8_000),
    "backticks": (lambda n: "`a``b```c" * n, 6_000),
    "open tags": (lambda n: "<a " * n, 30_000),
    "an unclosed fence": (lambda n: "```js\n" + "let x = 1;\n" * n, 20_000),
    "fences without end": (lambda n: "```\n" * n, 3_000),
    "nothing but lines": (lambda n: "\n" * n, 300_000),
    "a table of 5,000 rows": (lambda n: "|a|b|\n|-|-|\n" + "|x|y|\n" * n, 5_000),
    "stars line by line": (lambda n: "\n".join(["*a **b " * 400] * n), 12),
    "brackets line by line": (lambda n: "\n".join(["[ " * 1500] * n), 12),
    "a use of each of 3,000 references before their definitions": (
        lambda n: (
            "".join(f"[a][{i}]\n\n" for i in range(n)) + "".join(f"[{i}]: https://a.example/{i}\n\n" for i in range(n))
        ),
        3_000,
    ),
    "3,000 footnotes": (lambda n: "".join(f"a[^{i}]\n\n[^{i}]: b\n\n" for i in range(n)), 3_000),
    "unclosed elements": (lambda n: "<sub>a<sup>b<kbd>c" * n, 3_000),
    "pairs of stars between letters of Chinese": (lambda n: "中**(a)**文" * n, 5_000),
    "delimiter rows": (lambda n: "|a|\n|-|\n" * n, 5_000),
}
MAX_WORK_PER_CHARACTER = 200  # half of it is in use, by definitions; without the bounds of the parser it is thousands


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_pathological_text_is_rendered_completely_with_work_in_proportion(renderer: Renderer, name: str) -> None:
    """Half of the text takes about half of the work, and each character takes little."""
    make, size = PATHOLOGICAL[name]
    text = make(size)
    half, whole = renderer.work(make(size // 2)), renderer.work(text)
    shown = renderer.page.evaluate("document.querySelector('#thread .prose').textContent.length")
    assert shown >= sum(text.count(letter) for letter in "abcx")
    print(
        f"{name}: {whole / len(text):.1f} units of work for a character, {whole / half:.2f} times those of half of it"
    )
    assert whole < MAX_WORK_PER_CHARACTER * len(text)
    assert whole < 2.5 * half


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
        ("Results:\n| a | b |\n|--", "Results:"),
        ("x<su", "x"),
        ("x<sup>2", "x2"),
        ("> [!NO", ""),
        ("Text[^1].\n\n[^1", "Text[^1]."),
        ("**Note:**te", "Note:te"),
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


ROWS = 3_000
TABLE = "| a | b |\n|--|--|\n" + "".join(f"| row {i} | some **words** of row {i}, `code` |\n" for i in range(ROWS))
GROW_AND_MEASURE = """async ([base, text, size, first]) => {
    const { MarkdownStream } = await import(`${base}/static/js/render.js`);
    const root = document.createElement("div");
    root.className = "prose";
    document.getElementById("thread").hidden = false;
    document.getElementById("thread").replaceChildren(root);
    const stream = new MarkdownStream(root), { requestAnimationFrame } = window;
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    let times = [];
    window.requestAnimationFrame = (paint) => {
        const start = performance.now();
        paint();
        root.getBoundingClientRect();
        times.push(performance.now() - start);
        return 0;
    };
    for (let at = 0; at < first; at += 2000) {
        stream.write(text.slice(at, Math.min(first, at + 2000)));
        await wait(50);
    }
    await wait(500);
    times = [];
    for (let at = first; at < text.length; at += size) {
        stream.write(text.slice(at, at + size));
        await wait(40);
    }
    window.requestAnimationFrame = requestAnimationFrame;
    stream.finish();
    return times.sort((a, b) => a - b);
}"""


def test_a_table_of_any_length_stays_a_table(renderer: Renderer) -> None:
    """Beyond 100,000 characters each row is in a table with the head, and nothing is shown as pipes."""
    assert len(TABLE) > 100_000
    renderer.render(f"Before:\n{TABLE}\nAfter.")
    prose = renderer.page.locator("#thread .prose")
    expect(prose.locator("td:first-child")).to_have_text([f"row {i}" for i in range(ROWS)])
    shown = prose.evaluate(
        "(node) => [...node.querySelectorAll('table')].map((table) => table.tHead.textContent.trim())"
    )
    assert len(shown) < 10
    assert {" ".join(text.split()) for text in shown} == {"a b"}
    expect(prose.locator("p")).to_have_text(["Before:", "After."])
    expect(prose).not_to_contain_text("|")


@pytest.mark.parametrize("name", ["table", "list", "nested list", "poem"])
def test_work_for_a_token_does_not_grow_with_the_answer(renderer: Renderer, name: str) -> None:
    """At the end of a long answer, parsing and laying out a token takes less than 20 ms (the median, on a busy machine)."""
    text = {
        "table": TABLE,
        "list": "".join(f"{i}. **Item {i}** with `code` and some more words\n" for i in range(1, 600)),
        "nested list": "- **Item** with `code`\n  - inner\n    - innermost words\n" * 400,
        "poem": "a line of a poem that is not so long,\n" * 1_000,
    }[name]
    times = renderer.page.evaluate(GROW_AND_MEASURE, [renderer.url, text, 5, len(text) - 300])
    print(f"{name}: {len(times)} paints, median {times[len(times) // 2]:.1f} ms, most {times[-1]:.1f} ms")
    assert times[len(times) // 2] < 20


@pytest.mark.parametrize("number", ["{i}", "1"])
def test_a_list_of_any_length_keeps_its_numbers(renderer: Renderer, number: str) -> None:
    """It is divided between two items, also one whose numbers are all 1; code in an item is not divided."""
    item = "{number}. Item {i} has some words\n\n     ```\n     1. code\n     ```\n"
    count = 400
    text = "".join(item.format(number=number.format(i=i), i=i) for i in range(1, count + 1))
    renderer.render(f"{text}\nAfter.")
    prose = renderer.page.locator("#thread .prose")
    numbers = prose.evaluate(
        """(node) => [...node.querySelectorAll("ol")].flatMap((list) =>
            [...list.children].map((item, i) => [list.start + i, item.firstElementChild.textContent, item.querySelectorAll(".code").length]))"""
    )
    assert numbers == [[i, f"Item {i} has some words", 1] for i in range(1, count + 1)]
    expect(prose.locator("p").last).to_have_text("After.")


def test_a_block_is_drawn_again_only_when_its_definition_arrives(renderer: Renderer) -> None:
    """The text of a reference is plain until then; the node of the block stays, and other blocks are not touched."""
    result = renderer.page.evaluate(
        """async ([base]) => {
        const { MarkdownStream } = await import(`${base}/static/js/render.js`);
        const root = document.createElement("div");
        document.getElementById("thread").replaceChildren(root);
        const stream = new MarkdownStream(root);
        const frame = () => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 20));
        stream.write("See [docs][1] here.\\n\\nUntouched [x].\\n\\nEnd.\\n\\n");
        await frame();
        const nodes = [...root.children], before = root.textContent.includes("[docs][1]");
        let changes = 0;
        const watch = new MutationObserver((list) => (changes += list.length));
        watch.observe(nodes[1], { childList: true, subtree: true, characterData: true });
        for (const piece of ["[1]", ": htt", "ps://example.org", "\\n\\nMore."]) {
            stream.write(piece);
            await frame();
            if (root.innerText.includes("[1]:")) changes += 1000;
        }
        while (!root.querySelector("a")) await frame();
        return { before, changes, same: nodes.every((node) => node.isConnected), href: root.querySelector("a").href };
    }""",
        [renderer.url],
    )
    assert result == {"before": True, "changes": 0, "same": True, "href": "https://example.org/"}


def test_footnotes_and_their_uses_lead_to_each_other(renderer: Renderer) -> None:
    """A press on a number moves the focus, and the address of the page does not change."""
    renderer.render("Blue[^sky].\n\n" + "Text.\n\n" * 60 + "[^sky]: At day.\n")
    use = renderer.page.get_by_role("button", name="Footnote sky", exact=True)
    note = renderer.page.get_by_role("button", name="Back to footnote mark sky")
    url = renderer.page.url
    use.click()
    expect(note).to_be_focused()
    expect(note).to_be_in_viewport()
    note.press("Enter")
    expect(use).to_be_focused()
    assert renderer.page.url == url
