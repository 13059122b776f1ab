"""Conversations in the browser's database: several tabs, deletions, and records of older versions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, Chat, answer_with, delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"

OLD = {
    "id": "0123456789abcdef",
    "title": "Old times",
    "created": 1,
    "updated": 2,
    "model": "carousel-demo",
    "system": "Be brief.",
    "sampling": {"temperature": 0.5},
    "messages": [
        {"id": f"{i:016x}", "role": role, "content": text, "created": 1, "state": "done"}
        for i, (role, text) in enumerate([("user", "First"), ("assistant", "One."), ("user", "Second")] * 4)
    ],
}


def second_tab(chat: Chat) -> Chat:
    """Open the same conversation in another tab of the same browser."""
    other = Chat(chat.page.context.new_page(), chat.url)
    other.page.goto(chat.page.url)
    expect(other.page.locator("html[data-ready]")).to_be_attached()
    return other


def rows(page: Page, table: str) -> list[dict]:
    """Return all rows of a table of the page's database."""
    return page.evaluate(
        """async (table) => {
            const open = indexedDB.open("carousel");
            await new Promise((done) => (open.onsuccess = done));
            const all = open.result.transaction(table).objectStore(table).getAll();
            await new Promise((done) => (all.onsuccess = done));
            open.result.close();
            return all.result;
        }""",
        table,
    )


def texts(page: Page) -> list[str]:
    """Return the texts of all messages in the page's database."""
    return [row["content"] for row in rows(page, "messages") if "content" in row]


def delete(chat: Chat) -> None:
    """Delete the open conversation with its menu."""
    chat.page.locator("#more").click()
    chat.page.get_by_role("menuitem", name="Delete").click()


def test_a_conversation_deleted_in_another_tab_stays_deleted(chat: Chat) -> None:
    """The tab that streams its answer ends the answer, shows a new conversation and writes nothing."""
    chat.send_long()
    chat.wait_started()
    other = second_tab(chat)
    expect(other.answers).to_have_count(1)
    with chat.page.expect_request(lambda request: request.method == "DELETE"):
        delete(other)
    expect(chat.page.locator("#empty")).to_be_visible()
    expect(chat.page.locator(".toast")).to_contain_text("Another tab deleted this conversation.")
    expect(chat.rows).to_have_count(0)
    expect(other.rows).to_have_count(0)
    assert texts(chat.page) == []
    chat.reload()
    expect(chat.page.locator("#conversations-none")).to_be_visible()


def test_a_tab_that_missed_the_deletion_cannot_write_the_conversation_back(chat: Chat) -> None:
    """Its rename and its next question find the tombstone, even without any message from the other tab."""
    chat.page.context.add_init_script("delete window.BroadcastChannel")
    chat.open()
    answer_with(chat.page, delta("Yes."), DONE)
    chat.send("Is it so?")
    chat.wait_done()
    other = second_tab(chat)
    delete(other)
    expect(other.rows).to_have_count(0)
    chat.send("And now?")
    expect(chat.page.locator(".toast")).to_contain_text("Another tab deleted this conversation.")
    assert texts(chat.page) == []
    assert [row["title"] for row in rows(chat.page, "conversations") if "title" in row] == []


def test_a_rename_and_settings_of_another_tab_survive_an_answer(chat: Chat) -> None:
    """Each write changes only its own fields, so that the streaming tab shows and keeps the new title."""
    chat.send_long()
    chat.wait_started()
    other = second_tab(chat)
    other.rows.first.hover()
    other.rows.first.get_by_role("button").click()
    other.page.get_by_role("menuitem", name="Rename").click()
    other.page.get_by_role("textbox", name="Title").fill("A better name")
    other.page.keyboard.press("Enter")
    other.set_field("temperature", "0.3")
    expect(chat.page.locator("#title")).to_have_text("A better name")
    chat.set_field("top_p", "0.7")
    chat.page.bring_to_front()
    chat.stop.click()
    chat.wait_done()
    expect(chat.rows.first).to_contain_text("A better name")
    chat.reload()
    expect(chat.page.locator("#title")).to_have_text("A better name")
    chat.page.locator("#settings-open").click()
    expect(chat.page.locator("#settings [name=temperature]")).to_have_value("0.3")
    expect(chat.page.locator("#settings [name=top_p]")).to_have_value("0.7")


def test_an_answer_again_in_another_tab_is_shown_here(chat: Chat) -> None:
    """The tab that wrote the first answer stays with it, and has the new version beside it."""
    chat.send_long()
    chat.wait_started()
    other = second_tab(chat)
    chat.stop.click()
    chat.wait_done()
    answer_with(other.page, delta("The new one."), DONE)
    expect(other.page.locator("#send")).to_be_visible(timeout=ANSWER_MS)
    other.answers.last.get_by_role("button", name="Answer again").click()
    expect(other.text()).to_have_text("The new one.")
    expect(chat.answers).to_have_count(1)
    chat.answers.last.get_by_role("button", name="Later version").click()
    expect(chat.text()).to_have_text("The new one.")
    assert len(texts(chat.page)) == 3


def test_a_deletion_that_is_undone_brings_all_messages_back(chat: Chat) -> None:
    """This holds in this tab, in the other one, and after a reload."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.send("Is it so?")
    chat.wait_done()
    other = second_tab(chat)
    delete(chat)
    expect(other.rows).to_have_count(0)
    chat.page.get_by_role("button", name="Undo").click()
    expect(other.rows).to_have_count(1)
    expect(chat.text()).to_have_text("Yes.")
    chat.reload()
    expect(chat.text()).to_have_text("Yes.")


@pytest.mark.parametrize("version", [1, 2])
def test_records_of_older_versions_become_rows_of_a_tree(
    slow_server: Server, new_page: Callable[..., Page], version: int
) -> None:
    """Title, settings, and every message in its order are present after the upgrade."""
    page = new_page()
    page.route("**/blank", lambda route: route.fulfill(body="<p>blank", content_type="text/html"))
    page.goto(slow_server.url + "/blank")
    page.evaluate(
        """async ([record, version]) => {
            const open = indexedDB.open("carousel", version);
            open.onupgradeneeded = () => {
                open.result.createObjectStore("conversations", { keyPath: "id" });
                if (version > 1) open.result.createObjectStore("messages", { keyPath: ["conversation", "id"] });
            };
            await new Promise((done) => (open.onsuccess = done));
            const transaction = open.result.transaction([...open.result.objectStoreNames], "readwrite");
            const { messages, ...row } = record;
            const next = messages.length;
            transaction.objectStore("conversations").put(version > 1 ? { ...row, revision: 3, next } : record);
            if (version > 1)
                messages.forEach((message, i) =>
                    transaction.objectStore("messages").put({
                        ...message, id: message.id.split("").reverse().join(""), conversation: row.id, position: i,
                    }));
            await new Promise((done) => (transaction.oncomplete = done));
            open.result.close();
        }""",
        [OLD, version],
    )
    chat = Chat(page, slow_server.url).open()
    expect(chat.rows).to_have_text(["Old times"])
    chat.rows.first.get_by_role("link").click()
    expect(chat.questions).to_have_text(["First", "Second"] * 4)
    expect(chat.answers).to_have_count(4)
    page.locator("#settings-open").click()
    expect(page.locator("#settings [name=temperature]")).to_have_value("0.5")
    expect(page.locator("#system-prompt")).to_have_value("Be brief.")
    page.keyboard.press("Escape")
    answer_with(page, delta("Yes."), DONE)
    with page.expect_request("**/v1/chat/completions") as sent:
        chat.send("Third")
    assert len(sent.value.post_data_json["messages"]) == 1 + len(OLD["messages"]) + 1
    chat.wait_done()
    chat.reload()
    expect(chat.questions.last).to_have_text("Third")
    assert all("messages" not in row for row in rows(page, "conversations"))
