"""Performance of the chat page in headless Chromium: first load, and main-thread time with long lists.

python -m benchmarks.page            # 5 runs
python -m benchmarks.page --runs 1

load: open the page in a browser without a cache; requests, bytes on the wire, milliseconds until the page is ready.
open: open a conversation of 1,000 messages, including answers with lists, tables, code and formulas.
list: load the page with 1,000 conversations in its storage.
search: search 1,000 conversations of 20 messages; one figure per key, the first key without an index.
stream: stream an answer while the list has 1,000 rows; also counts the rows built or replaced meanwhile.
long answer: stream an answer of 100,000 characters with lists, tables, code and formulas, 200 characters a frame.
long answer opened, edited: load the page with that answer, and open its editor.

The longest task is that of the page's main thread in Chromium's trace. Its CPU time is reported in addition to its wall
time, which grows with the load of the machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.results import save, spread
from benchmarks.serving import Serving
from tests import chromium
from tests.e2e.page import begin_with

MESSAGES = 1000
CONVERSATIONS = 1000
LONG_ANSWER_CHARACTERS = 100_000
QUERY = "lake 77"  # its beginning matches all conversations, the whole only a few
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
TRACED = ["toplevel", "__metadata"]

TEXTS = [
    "The rotunda stands by the lake. " + "Some words about the place and its visitors. " * 12,
    "- one **bold** item\n- another with `code`\n- a [link](https://example.org)\n\nAnd a sentence after it.",
    "| name | value |\n|--|--|\n" + "\n".join(f"| row {row} | {row * row} |" for row in range(8)),
    "```python\ndef turn(slots):\n    for slot in slots:\n        yield slot.request or None\n```\n\nThat was it.",
    "The sum is $\\sum_{k=1}^{9} k^2$, and\n\n$$\\int_0^1 x^2 dx$$",
]

FILL = """async ({ conversations, messages, long, texts }) => {
    const open = indexedDB.open("carousel");
    await new Promise((done) => (open.onsuccess = done));
    const write = open.result.transaction(["conversations", "messages"], "readwrite");
    const [rows, all] = ["conversations", "messages"].map((name) => write.objectStore(name));
    for (let c = 0; c < conversations; c++) {
        const conversation = `c${c}`, title = `Conversation ${c} about turns`;
        const count = c ? messages : long;
        const fields = { model: "", system: "", sampling: {}, revision: 1, writer: "w", changes: 1 };
        rows.put({ id: conversation, title, created: c, updated: c, ...fields });
        for (let m = 0; m < count; m++) {
            const content = m % 2 ? texts[(m >> 1) % texts.length] : `Question ${m} about the rotunda?`;
            const role = m % 2 ? "assistant" : "user";
            const place = { id: `m${m}`, conversation, parent: m ? `m${m - 1}` : null, revision: 1, writer: "w" };
            all.put({ ...place, role, content, created: 0, state: "done" });
        }
    }
    await new Promise((done) => (write.oncomplete = done));
    open.result.close();
}"""

# Wait for several frames after the last change and until the browser is idle.
SETTLE = """async () => {
    for (let i = 0; i < 3; i++) {
        await new Promise(requestAnimationFrame);
        await new Promise((done) => requestIdleCallback(done, { timeout: 2000 }));
    }
}"""

COUNT_ROWS = """() => {
    window.changedRows = 0;
    new MutationObserver((changes) => {
        for (const { addedNodes } of changes)
            window.changedRows += [...addedNodes].filter((node) => node.dataset?.id).length;
    }).observe(document.getElementById("conversations"), { childList: true });
}"""


def longest_task(trace: bytes) -> dict[str, float]:
    """Return the longest task of a page's main thread in a trace: wall time and CPU time in milliseconds."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    tasks = [e for e in events if e["name"].endswith("RunTask") and (e["pid"], e["tid"]) in main]
    return {
        "longest_ms": max((e.get("dur", 0) for e in tasks), default=0) / 1000,
        "longest_cpu_ms": max((e.get("tdur", 0) for e in tasks), default=0) / 1000,
    }


def traced(browser: Browser, page: Page, action: Callable[[], Any]) -> dict[str, float]:
    """Run an action on a page and return the longest task until the page is idle."""
    browser.start_tracing(page=page, categories=TRACED)
    action()
    page.evaluate(SETTLE)
    return longest_task(browser.stop_tracing())


def load(browser: Browser, url: str) -> dict[str, float]:
    """Open the page in a new context with an empty cache, and return the figures of the load."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[int] = []
    requests: list[str] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
    page.on("request", lambda request: requests.append(request.url))
    page.add_init_script(
        """new MutationObserver((_, observer) => {
            if (!document.documentElement.hasAttribute("data-ready")) return;
            window.readyAt = performance.now();
            observer.disconnect();
        }).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] })"""
    )
    page.goto(url)
    page.wait_for_function("() => window.readyAt > 0")
    page.wait_for_load_state("networkidle")
    ready = page.evaluate("window.readyAt")
    context.close()
    return {"requests": len(requests), "wire_kB": sum(sizes) / 1000, "ready_ms": ready}


def long_lists(browser: Browser, url: str) -> dict[str, dict[str, float]]:
    """Fill a browser's storage with conversations, and measure the page with it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    page.evaluate(FILL, {"conversations": CONVERSATIONS, "messages": 20, "long": MESSAGES, "texts": TEXTS})
    figures = {"list": traced(browser, page, lambda: reload(page))}
    row = f"[data-id=c{CONVERSATIONS - 1}] a"
    figures["stream"] = stream(browser, page)
    figures["open"] = traced(browser, page, lambda: page.evaluate("location.hash = '#/c/c0'"))
    page.evaluate("location.hash = '#/'")
    page.wait_for_selector(row, state="attached")
    for at, key in enumerate(QUERY):
        typed = traced(browser, page, lambda key=key: page.locator("#search").press_sequentially(key))  # type: ignore[misc]
        figures["first key" if not at else f"key {at + 1}"] = typed
    figures["search emptied"] = traced(browser, page, lambda: page.locator("#search").fill(""))
    context.close()
    return figures


def reload(page: Page) -> None:
    """Reload a page and wait until it is ready."""
    page.reload()
    page.wait_for_selector("html[data-ready]")


def stream(browser: Browser, page: Page) -> dict[str, float]:
    """Send one message while the long list is shown, and measure until the answer is complete."""
    page.evaluate(COUNT_ROWS)

    def ask() -> None:
        page.locator("#prompt").fill("Count from 1 to 20.")
        page.wait_for_selector("#send:enabled", timeout=60_000)
        page.locator("#prompt").press("Enter")
        page.wait_for_selector("[data-role=assistant][aria-busy=false]", timeout=60_000)

    figures = traced(browser, page, ask)
    return {**figures, "built_rows": page.evaluate("window.changedRows")}


STREAM = """async (text) => {
    for (let at = 0; at < text.length; at += 200) {
        const delta = { content: text.slice(at, at + 200) };
        push(`data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\\n\\n`);
        await new Promise(requestAnimationFrame);
    }
    push("data: [DONE]\\n\\n");
}"""


def long_answer(browser: Browser, url: str) -> dict[str, dict[str, float]]:
    """Stream an answer of 100,000 characters, and measure the page with it."""
    section = "\n\n".join(TEXTS) + "\n\n"
    text = section * (LONG_ANSWER_CHARACTERS // len(section) + 1)
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    begin_with(page)
    page.locator("#prompt").fill("Tell me everything.")
    page.wait_for_selector("#send:enabled", timeout=60_000)
    page.locator("#prompt").press("Enter")
    page.wait_for_function("() => window.push")

    def finish() -> None:
        page.evaluate(STREAM, text)
        page.wait_for_selector("[data-role=assistant][aria-busy=false]", timeout=60_000)

    def edit() -> None:
        page.get_by_role("button", name="More", exact=True).last.click()
        page.get_by_role("menuitem", name="Edit answer").click()

    figures = {"long answer": traced(browser, page, finish)}
    figures["long answer opened"] = traced(browser, page, lambda: reload(page))
    figures["long answer edited"] = traced(browser, page, edit)
    context.close()
    return figures


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with Serving("--max-num-seqs", "8") as server, sync_playwright() as playwright:
        url = f"{server.url}/"
        for run in range(options.runs):
            browser = playwright.chromium.launch(executable_path=chromium.find(), args=FLAGS)
            measured = {"load": load(browser, url), **long_lists(browser, url), **long_answer(browser, url)}
            rows += [{"run": run, "case": case, **figures} for case, figures in measured.items()]
            browser.close()
    summary = summarise(rows)
    for case, figures in summary.items():
        print(f"{case:18}", "  ".join(f"{name} {value['median']:.0f}" for name, value in figures.items()))
    settings = {"messages": MESSAGES, "conversations": CONVERSATIONS, "query": QUERY}
    settings["long_answer_characters"] = LONG_ANSWER_CHARACTERS
    print("Saved to", save("page", settings, rows, summary))


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the spread of each figure over the runs, for each case."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("run", "case"):
                found.setdefault(row["case"], {}).setdefault(name, []).append(value)
    return {case: {name: spread(values) for name, values in names.items()} for case, names in found.items()}


if __name__ == "__main__":
    main()
