"""The list of conversations: pins, excerpts of a search, and its width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, delta
from tests.e2e.states import DONE
from tests.e2e.test_page_load import FILL

pytestmark = pytest.mark.browser


def ask(chat: Chat, question: str, answer: str) -> None:
    """Begin a conversation with a question and an answer."""
    chat.page.evaluate("location.hash = '#/'")
    expect(chat.page.locator("#empty")).to_be_visible()
    answer_with(chat.page, delta(answer), DONE)
    chat.send(question)
    chat.wait_done()


def choose(chat: Chat, title: str, entry: str) -> None:
    """Choose an entry of the menu of a row."""
    row = chat.rows.filter(has_text=title)
    row.hover()
    row.get_by_role("button").click()
    chat.page.get_by_role("menuitem", name=entry, exact=True).click()


def fill(chat: Chat, conversations: int, messages: int) -> None:
    """Store conversations whose messages have different numbers, and show them."""
    chat.page.evaluate(FILL, [conversations, messages])
    chat.reload()
    expect(chat.rows).to_have_count(conversations)


def test_pinned_conversations_are_listed_above_the_days(chat: Chat) -> None:
    """A pin survives a reload, and an unpinned conversation returns to its day."""
    for title in ("First", "Second", "Third"):
        ask(chat, title, "Yes.")
    entries = chat.page.locator("#conversations > li")
    choose(chat, "First", "Pin")
    expect(entries).to_have_text(["Pinned", "First", "Today", "Third", "Second"])
    chat.reload()
    expect(entries).to_have_text(["Pinned", "First", "Today", "Third", "Second"])
    chat.page.locator("#more").click()
    expect(chat.page.get_by_role("menuitem", name="Pin", exact=True)).to_be_visible()
    chat.page.keyboard.press("Escape")
    choose(chat, "First", "Unpin")
    expect(entries).to_have_text(["Today", "Third", "Second", "First"])


def test_a_pin_of_another_tab_is_shown(chat: Chat) -> None:
    """Both tabs list the conversation under the pinned ones."""
    ask(chat, "Is it so?", "Yes.")
    other = Chat(chat.page.context.new_page(), chat.url).open()
    choose(other, "Is it so?", "Pin")
    expect(chat.page.locator("#conversations > li")).to_have_text(["Pinned", "Is it so?"])


def test_found_rows_show_the_first_hit(chat: Chat) -> None:
    """It is one line of text with the words marked; a row that was found by its title only has none."""
    ask(chat, "A question", f"{'long ' * 40}Blue whales and <b>grey</b> *whales* sing.")
    choose(chat, "A question", "Rename")
    chat.page.get_by_role("textbox", name="Title").fill("Of the sea")
    chat.page.keyboard.press("Enter")
    search, excerpt = chat.page.locator("#search"), chat.rows.locator(".row-excerpt")
    search.fill("WHALES grey")
    expect(excerpt).to_have_text("…long long long Blue whales and <b>grey</b> *whales* sing.")
    expect(excerpt.locator("mark")).to_have_text(["whales", "grey", "whales"])
    expect(excerpt.locator("b")).to_have_count(0)
    search.fill("*whales* (")
    expect(chat.rows).to_have_count(0)
    search.fill("*whales*")
    expect(excerpt.locator("mark")).to_have_text(["*whales*"])
    search.fill("sea")
    expect(chat.rows).to_have_count(1)
    expect(excerpt).to_have_count(0)
    search.fill("")
    expect(excerpt).to_have_count(0)


def test_letters_with_a_longer_lower_case_do_not_shift_a_hit(chat: Chat) -> None:
    """The excerpt of a text with such letters has the hit, and the message is the one that contains it."""
    excerpts = chat.page.evaluate(
        """async (base) => {
            const { SearchIndex } = await import(`${base}/static/js/search.js`);
            const messages = ["İ", "İ".repeat(200) + " find it", "here: find"].map((content, i) => ({ id: String(i), content }));
            const index = new SearchIndex();
            return ["find", "it", "here", "zebra"].map((query) => index.excerpt({ id: "a", title: "İ", messages }, query));
        }""",
        chat.url,
    )
    assert [excerpt and excerpt["message"] for excerpt in excerpts] == ["1", "1", "2", None]
    assert [excerpt and excerpt["parts"][1] for excerpt in excerpts] == ["find", "it", "here", None]


def test_a_found_row_opens_at_its_hit(chat: Chat) -> None:
    """The message is scrolled to and its hits are marked for a moment, also in the conversation that is open."""
    fill(chat, 3, 60)
    marked = "(text) => [...(CSS.highlights.get('hit') ?? [])].map(String).join() === text"
    chat.page.locator("#search").fill("17")
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator("#thread").get_by_text("Text 2 17 ")).to_be_in_viewport()
    chat.page.wait_for_function(marked, arg="17")
    expect(chat.answers.last).not_to_be_in_viewport()
    chat.page.locator("#search").fill("41")
    chat.rows.first.get_by_role("link").click()
    expect(chat.page.locator("#thread").get_by_text("Text 2 41 ")).to_be_in_viewport()
    expect(chat.page.locator("#thread").get_by_text("Text 2 17 ")).not_to_be_in_viewport()
    chat.page.wait_for_function(marked, arg="41")
    chat.page.wait_for_function(marked, arg="")
    chat.page.locator("#search").fill("")
    chat.rows.nth(1).get_by_role("link").click()
    expect(chat.answers.last).to_be_in_viewport()


def test_a_column_that_grows_stays_at_the_hit(chat: Chat) -> None:
    """A conversation that opens at a hit is not scrolled to its end by text that arrives there at once."""
    fill(chat, 1, 60)
    chat.page.evaluate(
        """() => addEventListener("popstate", () => {
            const added = Object.assign(document.createElement("div"), { style: "height: 900px" });
            document.querySelector("#thread").append(added);
        })"""
    )
    chat.page.locator("#search").fill("17")
    chat.page.keyboard.press("Enter")
    chat.page.wait_for_function("() => CSS.highlights.has('hit')")
    chat.page.wait_for_function("() => !CSS.highlights.has('hit')")
    expect(chat.page.locator("#thread").get_by_text("Text 0 17 ")).to_be_in_viewport()


def test_a_message_is_outlined_where_text_cannot_be_marked(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """This holds in a browser without the Custom Highlight API."""
    page = new_page()
    page.add_init_script("Object.defineProperty(CSS, 'highlights', { value: undefined })")
    chat = Chat(page, slow_server.url).open()
    fill(chat, 1, 40)
    page.locator("#search").fill("17")
    page.keyboard.press("Enter")
    outlined = page.locator("#thread [data-hit]")
    expect(outlined).to_contain_text("Text 0 17 ")
    expect(outlined).to_be_in_viewport()
    expect(outlined).to_have_count(0)


def test_a_search_draws_a_bounded_number_of_rows(chat: Chat) -> None:
    """A key draws sixty rows with their excerpts however many are found, a button draws the others, and the next key sixty."""
    fill(chat, 300, 2)
    excerpts, more = chat.rows.locator(".row-excerpt"), chat.page.get_by_role("button", name="Show 240 more")
    chat.page.locator("#search").fill("word")
    expect(excerpts).to_have_count(60)
    expect(chat.rows).to_have_count(60)
    more.click()
    expect(excerpts).to_have_count(300)
    expect(chat.rows.nth(60).get_by_role("link")).to_be_focused()
    expect(more).to_have_count(0)
    chat.page.locator("#search").fill("wor")
    expect(chat.rows).to_have_count(60)
    expect(more).to_be_visible()
    chat.page.locator("#search").fill("")
    expect(chat.rows).to_have_count(300)


def width(chat: Chat) -> Any:
    """Return the width of the list in pixels."""
    return chat.page.locator("#sidebar").evaluate("(node) => node.getBoundingClientRect().width")


def test_the_list_is_widened_with_keys_and_by_dragging(chat: Chat) -> None:
    """The width has bounds, is announced, and survives a reload; a double click restores it."""
    separator = chat.page.get_by_role("separator", name="Width of the list")
    assert width(chat) == 272
    separator.focus()
    chat.page.keyboard.press("ArrowRight")
    expect(separator).to_have_attribute("aria-valuenow", "288")
    assert width(chat) == 288
    chat.page.keyboard.press("End")
    assert width(chat) == 480
    box = separator.bounding_box()
    assert box
    chat.page.mouse.move(box["x"] + box["width"] / 2, 300)
    chat.page.mouse.down()
    chat.page.mouse.move(340, 320, steps=3)
    assert width(chat) == 340
    chat.page.mouse.move(5, 320)
    assert width(chat) == 220
    chat.page.mouse.move(360, 320)
    chat.page.mouse.up()
    chat.page.mouse.move(700, 320)
    chat.reload()
    expect(separator).to_have_attribute("aria-valuenow", "360")
    assert width(chat) == 360
    separator.dblclick()
    assert width(chat) == 272
    chat.reload()
    expect(separator).to_have_attribute("aria-valuenow", "272")


def test_a_stored_width_out_of_bounds_is_corrected(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """A huge number, a negative one and a text leave a usable page."""
    for stored, shown in (("1e9", 480), ("-5", 220), ('"wide"', 272)):
        page = new_page()
        page.add_init_script(f"localStorage['carousel.list-width'] = {stored!r}")
        chat = Chat(page, slow_server.url).open()
        assert width(chat) == shown
        expect(chat.prompt).to_be_in_viewport()


def test_a_wide_list_shows_titles_in_two_lines(chat: Chat) -> None:
    """A long title has one line in a narrow list and two in a wide one, and its whole text on hover."""
    title = "A title that is much longer than the room that a narrow list has for it, and than two lines of a wide one"
    ask(chat, title, "Yes.")
    shown = chat.rows.first.locator(".row-title")
    height = shown.evaluate("(node) => node.getBoundingClientRect().height")
    chat.page.get_by_role("separator").press("End")
    assert shown.evaluate("(node) => node.getBoundingClientRect().height") == 2 * height
    expect(chat.rows.first.get_by_role("link")).to_have_attribute("title", title)


SPREAD = """async () => {
    const open = indexedDB.open("carousel");
    await new Promise((done) => (open.onsuccess = done));
    const write = open.result.transaction(["conversations", "messages"], "readwrite");
    const [rows, messages] = ["conversations", "messages"].map((name) => write.objectStore(name));
    const [all, last] = [rows.getAll(), messages.get(["c0", "m1"])];
    await new Promise((done) => (last.onsuccess = done));
    for (const row of all.result) rows.put({ ...row, updated: Date.now() - (999 - Number(row.id.slice(1))) * 3_600_000 });
    messages.put({ ...last.result, content: `${last.result.content} A zebra.` });
    await new Promise((done) => (write.oncomplete = done));
    open.result.close();
}"""


def test_a_list_of_1_000_conversations(chat: Chat) -> None:
    """They have days and pins, the oldest one is found and opened with the keyboard, and others are out of sight."""
    fill(chat, 1000, 2)
    chat.page.evaluate(SPREAD)
    chat.reload()
    days = chat.page.locator("#conversations .day")
    expect(days).to_have_text(["Today", "Yesterday", "Last seven days", "Last month", "Older"])
    skipped = "(nodes) => nodes.filter((node) => !node.firstElementChild.checkVisibility({ contentVisibilityAuto: true })).length"
    assert chat.rows.evaluate_all(skipped) > 900
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.type("zebra")
    expect(chat.rows).to_have_text("Title 0…word word word word A zebra.")
    chat.page.keyboard.press("ArrowDown")
    expect(chat.rows.first.get_by_role("link")).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(chat.text()).to_contain_text("A zebra.")
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.press("Escape")
    chat.page.locator("#more").click()
    chat.page.get_by_role("menuitem", name="Pin", exact=True).click()
    expect(days.first).to_have_text("Pinned")
    expect(chat.rows.first).to_have_attribute("data-id", "c0")
    expect(chat.rows).to_have_count(1000)
