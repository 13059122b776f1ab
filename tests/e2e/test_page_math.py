"""Formulas in answers: parsed before Markdown and drawn by KaTeX under the page's own security policy."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.page import Chat, answer_with, begin_with, delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
FORMULAS = r"""Inline \(a_1 * b_2 * c\) and $E = mc^2$, then

\[
\int_0^1 x^2 \, dx = \frac{1}{3}
\]

$$
\begin{pmatrix} a & b \\ c & d \end{pmatrix} \sqrt{x} \overbrace{a+b}^{n} \color{red}{x}
- b
$$

1. In a list: \(x\)

   \[ y = \sum_{i} \underline{z_i} \]

It costs $5 and $10, US$7 in $HOME or `$x$` and `\(y\)`.

```
\(code\)
```
"""


def answer(chat: Chat, text: str) -> None:
    """Answer a question with `text`."""
    answer_with(chat.page, delta(text), DONE)
    chat.send("Show me")
    chat.wait_done()


def test_formulas_are_drawn_and_prices_and_code_stay_text(chat: Chat) -> None:
    """Each delimiter works, also in lists, and the style policy refuses nothing."""
    answer(chat, FORMULAS)
    expect(chat.text().locator(".math .katex")).to_have_count(6)
    expect(chat.text().locator(".math.display")).to_have_count(3)
    expect(chat.text().locator(".katex-error")).to_have_count(0)
    expect(chat.text()).to_contain_text("It costs $5 and $10, US$7 in $HOME or $x$ and \\(y\\).")
    expect(chat.text().locator("pre")).to_have_text("\\(code\\)\n")
    expect(chat.text().locator("math").first).to_be_attached()
    family = chat.text().locator(".katex").first.evaluate("(node) => getComputedStyle(node).fontFamily")
    assert "KaTeX_Main" in family
    assert chat.page.evaluate("document.fonts.ready.then(() => [...document.fonts].some((f) => f.status === 'loaded'))")


def test_the_library_for_formulas_loads_at_the_first_one(chat: Chat) -> None:
    """A page without formulas never requests it."""
    requests: list[str] = []
    chat.page.on("request", lambda request: requests.append(request.url) if "katex" in request.url else None)
    answer(chat, "No formula for $5.")
    assert not requests
    answer(chat, r"One: \(x\).")
    expect(chat.text().locator(".katex")).to_have_count(1)
    assert any("katex.min.js" in url for url in requests)


@pytest.mark.parametrize("text", [r"Let \(a_1 *b* c_2", "Let $$\na_1 *b* c_2", r"Let \[a_1 *b* [c](d", r"**Bold \(x*y"])
def test_an_unfinished_formula_stays_text(chat: Chat, text: str) -> None:
    """Its delimiters are shown, and nothing in it is parsed as Markdown."""
    begin_with(chat.page, delta(text))
    chat.send("Show me")
    formula = text[min(text.find(mark) for mark in ("\\(", "\\[", "$$") if mark in text) :]
    expect(chat.text()).to_contain_text(formula.replace("\n", " "))
    expect(chat.text().locator("em, a, .math")).to_have_count(0)


def test_unsupported_formulas_stay_text(chat: Chat) -> None:
    """Their source is readable, and they create no link or image."""
    answer(chat, r"A \(\frac{1\) b \(\href{https://evil.example/}{x}\) c \(\includegraphics{https://evil.example/y}\).")
    expect(chat.text().locator(".math").first).to_have_text(r"\frac{1")
    expect(chat.text().locator("a, img")).to_have_count(0)


def test_prices_and_formulas_are_distinguished(chat: Chat) -> None:
    """A single dollar sign begins a formula only if its content looks like one."""
    found = chat.page.evaluate(
        """async ([base, texts]) => {
            const { formulaAt } = await import(`${base}/static/js/math.js`);
            return texts.map((text) => formulaAt(text, text.indexOf("$"))?.tex ?? null);
        }""",
        [
            chat.url,
            ["$x$", "$a_1+b$", "$f(x)$", "$5 and $6", "$5-$10", "a $5 or 6$ b", "$100$", "US$5=$x", "$a$b", "$HOME/$X"],
        ],
    )
    assert found == ["x", "a_1+b", "f(x)", None, None, None, None, None, None, None]


def test_lists_and_tables_run_in_the_direction_of_their_text(chat: Chat) -> None:
    """In Hebrew the marker and the first column are at the right, and in English at the left."""
    answer(chat, "- שלום\n- עולם\n\n| שם | גיל |\n|--|--|\n| דן | 5 |\n\n> שלום\n\n---\n\n- one\n- two")
    direction = "(node) => getComputedStyle(node).direction"
    for selector, nth, expected in (("ul", 0, "rtl"), ("table", 0, "rtl"), ("blockquote", 0, "rtl"), ("ul", 1, "ltr")):
        assert chat.text().locator(selector).nth(nth).evaluate(direction) == expected, selector
    first, second = (chat.text().locator("th").nth(i).bounding_box() for i in (0, 1))
    assert first and second
    assert first["x"] > second["x"]


COPY = """() => {
    const data = new DataTransfer();
    const event = new ClipboardEvent("copy", { clipboardData: data, bubbles: true, cancelable: true });
    document.activeElement.dispatchEvent(event);
    return event.defaultPrevented ? [data.getData("text/plain"), data.getData("text/html")] : null;
}"""


def test_a_copied_formula_is_its_source_once(chat: Chat) -> None:
    """Lines stay apart, half of a selected formula is copied whole, and text without formulas is left to the browser."""
    answer(chat, "The mean \\(\\bar x\\) is\n\n$$\n\\frac{a}{b}\n$$\n\n- so `it` ends")
    expect(chat.text().locator(".katex")).to_have_count(2)
    chat.text().evaluate("(node) => getSelection().selectAllChildren(node)")
    text, html = chat.page.evaluate(COPY)
    lines = [line for line in text.splitlines() if line]
    assert lines == ["The mean $\\bar x$ is", "$$\\frac{a}{b}$$", "so it ends"]
    assert "katex" not in html
    assert html.count("\\frac") == 1
    chat.text().locator(".katex-html").first.evaluate("(node) => getSelection().selectAllChildren(node)")
    assert chat.page.evaluate(COPY)[0] == "$\\bar x$"
    chat.text().locator("li").evaluate("(node) => getSelection().selectAllChildren(node)")
    assert chat.page.evaluate(COPY) is None
    assert chat.page.locator(".copied").count() == 0


def test_formulas_that_waited_are_drawn_one_by_one_while_idle(chat: Chat) -> None:
    """When KaTeX has loaded, none is drawn at once, and the newest one, which is in view, is the first."""
    drawn = chat.page.evaluate(
        """async (base) => {
            const { renderWhole } = await import(`${base}/static/js/render.js`);
            const steps = [];
            window.requestIdleCallback = (step) => steps.push(step);
            const root = document.createElement("div"), thread = document.getElementById("thread");
            thread.replaceChildren(root);
            renderWhole(root, "\\\\(a\\\\)\\n\\n".repeat(50));
            while (!steps.length) await new Promise((done) => setTimeout(done, 20));
            const counts = [];
            for (let i = 0; i < 3; i++) {
                counts.push(root.querySelectorAll(".katex").length);
                steps.shift()({ timeRemaining: () => 0 });
            }
            return [...counts, root.lastElementChild.querySelector(".katex") !== null];
        }""",
        chat.url,
    )
    assert drawn == [0, 1, 2, True]
