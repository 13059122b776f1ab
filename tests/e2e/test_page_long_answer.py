"""An answer of 100,000 characters: it arrives in small steps, and can be kept, found, edited and copied."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.page import Chat, begin_with
from tests.e2e.test_page_store import texts
from tests.e2e.test_page_tree import menu

pytestmark = pytest.mark.browser

CHARACTERS = 100_000
COUNT = 260
SECTION = """## Section {number}

A paragraph with **bold** words, `code` and the formula \\(x_{number}^2 + 1\\), then some more words to fill the lines of it.

1. one item with *slanted* words
2. another
   - an inner item

```python
def turn(slots: list[Slot]) -> Iterator[Slot]:
    yield from (slot for slot in slots if slot.request is not None)  # {number}
```

| name | value |
|--|--|
| row | {number} |

$$\\sum_{{k=1}}^{{{number}}} k^2$$

"""
TEXT = "".join(SECTION.format(number=number) for number in range(COUNT)) + "The last word is zanzibar."
MAX_PARSED = 10_000  # characters in a step; the answer has ten times as many
MAX_TOUCHED = 2_500  # nodes in a step; the answer has twenty times as many

STREAM = """async ([text, size]) => {
    const { parseFromString } = DOMParser.prototype;
    const frame = () => new Promise(requestAnimationFrame);
    const body = document.querySelector("[data-role=assistant] .body");
    const count = (node) => 1 + [...node.childNodes].reduce((sum, child) => sum + count(child), 0);
    let parsed = 0, touched = 0, painted = false;
    DOMParser.prototype.parseFromString = function (source, type) {
        parsed += String(source).length;
        return parseFromString.call(this, source, type);
    };
    new MutationObserver((changes) => {
        for (const { target, addedNodes, removedNodes } of changes) {
            const parent = target instanceof Element ? target : target.parentElement;
            if (parent?.closest(".math")) continue; // formulas are drawn when the browser is idle
            touched += 1 + [...addedNodes, ...removedNodes].reduce((sum, node) => sum + count(node), 0);
            painted ||= body.contains(parent);
        }
    }).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    const add = async (content) => {
        parsed = touched = 0;
        painted = false;
        push(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\\n\\n`);
        while (!painted) await frame(); // an expensive paint is followed by a pause, after which more is painted at once
        await frame();
    };
    await add(text.slice(0, 2000));
    while (!document.querySelector(".katex") || !document.querySelector(".hljs-keyword")) await frame(); // loaded
    const most = { parsed: 0, touched: 0 };
    for (let at = 2000; at < text.length; at += size) {
        await add(text.slice(at, at + size));
        most.parsed = Math.max(most.parsed, parsed);
        most.touched = Math.max(most.touched, touched);
    }
    push("data: [DONE]\\n\\n");
    return { ...most, nodes: count(body) };
}"""


def shown(chat: Chat) -> str:
    """Return the text that is shown, without that of formulas, which are drawn when the browser is idle."""
    return str(
        chat.text().evaluate(
            """(body) => {
                const copied = body.cloneNode(true);
                for (const math of copied.querySelectorAll(".math")) math.textContent = math.dataset.tex;
                return copied.textContent;
            }"""
        )
    )


def test_an_answer_of_100_000_characters(chat: Chat) -> None:
    """No step parses or changes more than a section, and its text is whole after a reload, a search, an edit and a copy."""
    begin_with(chat.page)
    chat.send("Tell me everything")
    chat.page.wait_for_function("() => window.push")
    most = chat.page.evaluate(STREAM, [TEXT, 400])
    chat.wait_done()
    assert len(TEXT) > CHARACTERS and most["nodes"] > 20 * MAX_TOUCHED
    assert most["parsed"] < MAX_PARSED and most["touched"] < MAX_TOUCHED
    assert sorted(texts(chat.page)) == sorted(["Tell me everything", TEXT])
    streamed = shown(chat)
    expect(chat.text().locator("h2")).to_have_count(COUNT)
    chat.reload()
    expect(chat.text()).to_contain_text("zanzibar")
    assert shown(chat) == streamed

    chat.page.locator("#new").click()
    chat.page.locator("#search").fill("zanzibar")
    chat.rows.first.get_by_role("link").click()
    chat.page.wait_for_function("() => CSS.highlights.has('hit')")
    expect(chat.text().locator("p").last).to_be_in_viewport()

    chat.page.evaluate("navigator.clipboard.writeText = async (text) => void (window.copied = text)")
    chat.answers.last.get_by_role("button", name="Copy answer").click()
    assert chat.page.evaluate("copied") == TEXT

    menu(chat, chat.answers.last, "Edit answer")
    box = chat.page.get_by_role("textbox", name="Edit answer")
    expect(box).to_have_value(TEXT)
    box.press("End")
    box.press_sequentially(" Or zebra.")
    chat.page.get_by_role("button", name="Save").click()
    expect(chat.text()).to_contain_text("zanzibar. Or zebra.")
    chat.reload()
    expect(chat.text()).to_contain_text("zanzibar. Or zebra.")
    assert sorted(texts(chat.page)) == sorted(["Tell me everything", TEXT, f"{TEXT} Or zebra."])
