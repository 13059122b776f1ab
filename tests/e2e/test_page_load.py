"""The size of the first load, and work that must not grow with the number of conversations and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, delta

pytestmark = pytest.mark.browser

FILL = """async ([conversations, messages]) => {
    const open = indexedDB.open("carousel");
    await new Promise((done) => (open.onsuccess = done));
    const write = open.result.transaction(["conversations", "messages"], "readwrite");
    for (let c = 0; c < conversations; c++) {
        const id = `c${c}`;
        write.objectStore("conversations").put({ id, title: `Title ${c}`, created: c, updated: c, model: "carousel-demo",
            system: "", sampling: {}, revision: 1, writer: "w", changes: 1 });
        for (let m = 0; m < messages; m++)
            write.objectStore("messages").put({ id: `m${m}`, conversation: id, parent: m ? `m${m - 1}` : null, revision: 1, writer: "w", role: m % 2 ? "assistant" : "user",
                content: `Text ${c} ${m} ` + "word ".repeat(100), created: c, state: "done" });
    }
    await new Promise((done) => (write.oncomplete = done));
    open.result.close();
}"""


def test_the_first_load_is_a_few_compressed_requests(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """It consists of the page, its scripts, styles and icons, and two API requests, in less than 140 kB on the wire."""
    page = new_page()
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[int] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    Chat(page, slow_server.url).open()
    page.wait_for_load_state("networkidle")
    version = page.evaluate("document.querySelector('script[type=module]').src.split('/')[4]")
    static = [url for url in urls if "/static/" in url]
    assert all(f"/static/{version}/" in url for url in static)
    assert len(static) == len(set(static))
    print(f"first load: {len(urls)} requests, {sum(sizes) / 1000:.0f} kB")
    assert len(urls) <= 10, urls
    assert sum(sizes) < 140_000


def test_the_search_reads_each_conversation_once(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """Further keys use the index, and a changed conversation is found by its new text."""
    chat = Chat(new_page(), slow_server.url).open()
    found: Any = chat.page.evaluate(
        """async (base) => {
            const { SearchIndex } = await import(`${base}/static/js/search.js`);
            let reads = 0;
            const message = { get content() { reads++; return "Blue Whale"; } };
            const list = Array.from({ length: 50 }, (_, i) => ({ id: String(i), revision: 1, title: `T${i}`, messages: [message, { content: "x" }] }));
            const index = new SearchIndex();
            const counts = [index.find(list, "whale").length, index.find(list, "blue w").length, reads];
            list[3].messages.push({ content: "Red fox" });
            list[3].revision = 2;
            list[4].title = "Red herring";
            return [...counts, index.find(list, "red").length, index.find(list, "RED whale").length];
        }""",
        slow_server.url,
    )
    assert found == [50, 50, 50, 2, 2]


def test_messages_and_rows_out_of_sight_are_not_laid_out(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """The browser skips them until they are scrolled to, and an opened conversation shows its newest message."""
    chat = Chat(new_page(), slow_server.url).open()
    chat.page.evaluate(FILL, [200, 30])
    chat.reload()
    expect(chat.rows).to_have_count(200)
    chat.rows.first.get_by_role("link").click()
    expect(chat.answers.last).to_be_in_viewport()
    skipped = "(nodes) => nodes.filter((node) => !node.firstElementChild.checkVisibility({ contentVisibilityAuto: true })).length"
    assert chat.questions.evaluate_all(skipped) > 5
    assert chat.rows.evaluate_all(skipped) > 100
    chat.page.locator("#search").fill("text 7 3")
    expect(chat.rows.first).to_be_visible()


def test_settings_show_the_defaults_of_the_server(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """An unset field and its slider show the value that the server uses."""
    chat = Chat(new_page(), slow_server.url).open()
    chat.page.locator("#settings-open").click()
    field = chat.page.locator("#settings [name=temperature]")
    expect(field).to_have_attribute("placeholder", "0.6")
    expect(field).to_have_value("")
    expect(chat.page.get_by_role("slider", name="Temperature")).to_have_value("0.6")


def test_a_column_that_changes_its_height_is_still_followed(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """A reader's scrolling is distinguished from content that shrinks and grows between two frames."""
    chat = Chat(new_page(), slow_server.url).open()
    gap = chat.page.evaluate(
        """async (base) => {
            const { AutoScroll } = await import(`${base}/static/js/scroll.js`);
            const scroller = document.createElement("div"), content = document.createElement("div");
            Object.assign(scroller.style, { height: "300px", overflow: "auto" });
            content.style.height = "2000px";
            scroller.append(content);
            document.body.append(scroller);
            const frames = async (n) => { while (n--) await new Promise(requestAnimationFrame); };
            const follow = new AutoScroll(scroller, content, document.createElement("button"));
            follow.toEnd();
            await frames(6);
            content.style.height = "1500px";
            void scroller.scrollTop;
            content.style.height = "2500px";
            scroller.dispatchEvent(new Event("scroll"));
            await frames(6);
            return scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
        }""",
        slow_server.url,
    )
    assert gap < 4


def test_rows_of_the_list_are_built_once(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """An answer, a search and a deletion leave the rows of all other conversations in place."""
    chat = Chat(new_page(), slow_server.url).open()
    chat.page.evaluate(FILL, [30, 2])
    chat.reload()
    expect(chat.rows).to_have_count(30)
    chat.rows.evaluate_all("(nodes) => nodes.forEach((node) => (node.isOld = true))")
    ids = "(nodes) => nodes.map((node) => node.dataset.id)"
    before = chat.rows.evaluate_all(ids)
    assert before == [f"c{i}" for i in range(29, -1, -1)]
    chat.rows.nth(12).get_by_role("link").click()
    answer_with(chat.page, delta("1, 2, 3, 4, 5"), "data: [DONE]")
    chat.send("Count from 1 to 5.")
    chat.wait_done()
    moved = [before[12], *before[:12], *before[13:]]
    expect(chat.rows.first).to_have_attribute("data-id", moved[0])
    assert chat.rows.evaluate_all(ids) == moved
    chat.page.locator("#search").fill("title 7")
    expect(chat.rows).to_have_count(3)
    chat.page.locator("#search").fill("")
    expect(chat.rows).to_have_count(30)
    chat.rows.first.hover()
    chat.rows.first.get_by_role("button", name="Menu of").click()
    chat.page.get_by_role("menuitem", name="Delete").click()
    expect(chat.rows).to_have_count(29)
    assert chat.rows.evaluate_all(ids) == moved[1:]
    assert chat.rows.evaluate_all("(nodes) => nodes.every((node) => node.isOld)")
    expect(chat.page.locator("#conversations .day")).to_have_text(["Older"])


LONG_THREAD = """async ([base, hasIdle]) => {
    if (!hasIdle) {
        window.requestIdleCallback = () => 0;
        window.cancelIdleCallback = () => {};
    }
    const { Thread } = await import(`${base}/static/js/thread.js`);
    const messages = Array.from({ length: 60 }, (_, i) =>
        ({ id: String(i), role: i % 2 ? "assistant" : "user", content: `Text ${i}`, state: "done", created: 0,
            parent: i ? String(i - 1) : null }));
    window.thread = new Thread({ send() {} });
    window.thread.show({ id: "long", messages });
    return [...document.querySelectorAll("#thread .message-answer")].map(
        (answer) => answer.querySelector(".body")?.textContent.trim() ?? "");
}"""


def test_older_answers_are_drawn_when_the_browser_is_idle(chat: Chat) -> None:
    """A long conversation opens with its end, and the other texts follow, so that the browser's search finds them."""
    texts = chat.page.evaluate(LONG_THREAD, [chat.url, True])
    assert [text for text in texts if text] == [f"Text {i}" for i in range(49, 60, 2)]
    expect(chat.answers.locator(".body")).to_have_text([f"Text {i}" for i in range(1, 60, 2)])


def test_an_older_answer_is_drawn_when_it_comes_into_view(chat: Chat) -> None:
    """An answer that is scrolled to before the browser was idle is not empty."""
    texts = chat.page.evaluate(LONG_THREAD, [chat.url, False])
    assert texts[0] == ""
    chat.answers.last.hover()
    chat.page.mouse.wheel(0, -100_000)
    expect(chat.answers.first.locator(".body")).to_have_text("Text 1")
    expect(chat.answers.nth(15)).to_be_empty()


def test_home_leaves_the_end_of_a_column_that_changes_its_height(chat: Chat) -> None:
    """Home scrolls to the first message while messages that come into view take their real height."""
    chat.page.evaluate(LONG_THREAD, [chat.url, False])
    chat.page.locator("#scroller").focus()
    chat.page.keyboard.press("Home")
    expect(chat.answers.first.locator(".body")).to_have_text("Text 1")
    expect(chat.questions.first).to_be_in_viewport()


def test_keys_of_a_menu_do_not_scroll_the_column(chat: Chat) -> None:
    """An arrow key that selects an entry does not scroll, so later text is still followed."""
    chat.page.evaluate(LONG_THREAD, [chat.url, True])
    chat.page.locator("#theme").click()
    chat.page.keyboard.press("ArrowUp")
    chat.page.keyboard.press("Escape")
    chat.page.evaluate(
        "document.querySelector('#thread').append(Object.assign(document.createElement('div'), { style: 'height: 900px' }))"
    )
    gap = "({ scrollHeight, clientHeight, scrollTop }) => Math.abs(scrollHeight - clientHeight - scrollTop)"
    expect(chat.page.locator("#jump")).to_be_hidden()
    chat.page.wait_for_function(f"() => ({gap})(document.querySelector('#scroller')) < 4")


def test_idle_work_runs_without_request_idle_callback(chat: Chat) -> None:
    """Work is done in slices, and cancelled work does not continue."""
    done = chat.page.evaluate(
        """async (base) => {
            delete window.requestIdleCallback;
            const { whenIdle } = await import(`${base}/static/js/idle.js`);
            const steps = [0, 0];
            whenIdle(() => { steps[1]++; return true; })();
            await new Promise((done) => whenIdle(() => {
                const start = performance.now();
                while (performance.now() - start < 2);
                if (++steps[0] === 20) done();
                return steps[0] < 20;
            }));
            return steps;
        }""",
        chat.url,
    )
    assert done == [20, 0]
