"""Conversations on a server with a store follow their key to other browsers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Server
from tests.e2e.conversation_files import CHATGPT, LLAMA, OPEN_WEBUI, mapping
from tests.e2e.page import ANSWER_MS, Chat, answer_with, delta
from tests.e2e.test_page_import import import_file
from tests.e2e.test_page_store import delete, rows, texts
from tests.e2e.test_page_tree import DONE, ask, edit, menu

pytestmark = pytest.mark.browser

KEY = "key-of-one"
SEEDS = 4


def key_of(seed: int) -> str:
    """Return the key of a random case: its exports have no rows of another one."""
    return f"key-of-seed-{seed}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a store, two keys, and one for each random case."""
    folder: Path = tmp_path_factory.mktemp("page")
    keys = folder / "keys.toml"
    names = {"one": KEY, "two": "key-of-two"} | {f"seed{seed}": key_of(seed) for seed in range(SEEDS)}
    keys.write_text("".join(f'[tenants.{name}]\nkey = "{key}"\n' for name, key in names.items()))
    keys.chmod(0o600)
    server = Server.start("--store", str(folder / "store.db"), "--keys-file", str(keys))
    yield server
    server.stop()
    server.assert_no_traceback()


@pytest.fixture
def browser_of(service: Server, new_page: Callable[..., Page]) -> Callable[..., Chat]:
    """Return a function that opens the page in a new browser with a key."""

    def make(key: str = KEY) -> Chat:
        page = new_page()
        page.context.add_init_script(f"sessionStorage['carousel.key'] = {key!r}")
        return Chat(page, service.url).open()

    return make


def exchange(chat: Chat) -> None:
    """Exchange rows with the server, as when the page is looked at again."""
    page = chat.page
    expect(page.locator("#kept")).to_contain_text("on the server")
    with page.expect_response(lambda response: "/v1/page/rows?" in response.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_function(
        """async () => {
            await navigator.locks.request("carousel.sync", () => {});
            const open = indexedDB.open("carousel");
            await new Promise((done) => (open.onsuccess = done));
            const left = ["conversations", "messages"].map((name) =>
                open.result.transaction(name).objectStore(name).index("unsent").count());
            await Promise.all(left.map((one) => new Promise((done) => (one.onsuccess = done))));
            open.result.close();
            return left.every(({ result }) => result === 0);
        }"""
    )


def test_a_conversation_follows_its_key_to_another_browser(browser_of: Callable[..., Chat]) -> None:
    """It is continued there, and comes back with its answer, its title and its versions."""
    one = browser_of()
    ask(one, "One?", "Yes.")
    exchange(one)
    two = browser_of()
    expect(two.rows).to_have_text(["One?"])
    two.rows.first.get_by_role("link").click()
    expect(two.text()).to_have_text("Yes.")
    ask(two, "Two?", "Also.")
    answer_with(two.page, delta("No."), DONE)
    edit(two, two.questions.first, "Not one?")
    expect(two.text()).to_have_text("No.")
    two.wait_done()
    exchange(two)
    exchange(one)
    expect(one.answers.locator(".body")).to_have_text(["Yes.", "Also."])
    one.questions.first.get_by_role("button", name="Later version").click()
    expect(one.answers.locator(".body")).to_have_text(["No."])
    other = browser_of("key-of-two")
    exchange(other)
    expect(other.rows).to_have_count(0)
    delete(one)
    exchange(one)
    exchange(two)
    expect(two.rows).to_have_count(0)
    one.page.get_by_role("button", name="Undo").click()
    exchange(one)
    exchange(two)
    expect(two.rows).to_have_count(1)


def test_offline_edits_of_two_browsers_are_versions_in_both(browser_of: Callable[..., Chat]) -> None:
    """Neither is lost, and an answer in a branch that was deleted elsewhere meanwhile is kept too."""
    one = browser_of()
    ask(one, "First?", "Yes.")
    exchange(one)
    two = browser_of()
    two.rows.filter(has_text="First?").get_by_role("link").click()
    expect(two.text()).to_have_text("Yes.")
    for chat, text in ((one, "Edited by one?"), (two, "Edited by two?")):
        chat.page.route("**/v1/page/rows*", lambda route: route.abort())
        chat.page.route("**/v1/chat/completions", lambda route: route.fallback())
        answer_with(chat.page, delta(f"Answer to {text}"), DONE)
        edit(chat, chat.questions.first, text)
        expect(chat.text()).to_have_text(f"Answer to {text}")
        chat.wait_done()
    menu(one, one.answers.last, "Delete from here")
    for chat in (one, two, one):
        chat.page.unroute_all()
        exchange(chat)
    for chat in (one, two):
        expect(chat.questions.first.get_by_role("group", name="Version")).to_contain_text("/3")
        assert {"Edited by one?", "Edited by two?", "First?", "Answer to Edited by two?"} <= set(texts(chat.page))


def test_rows_that_are_too_long_for_a_request_are_sent_in_parts(browser_of: Callable[..., Chat]) -> None:
    """One that is too long by itself stays in the browser, and the page says so."""
    one = browser_of()

    def refuse(route: Route) -> None:
        if len(route.request.post_data or "") > 5000:
            error = {"message": "the body is too large", "type": "invalid_request_error", "code": "body_too_large"}
            return route.fulfill(status=413, json={"error": error})
        return route.continue_()

    one.page.route("**/v1/page/rows", refuse)
    for number in range(8):
        ask(one, f"Question {number}? " + "word " * 200, f"Answer {number}.")
        one.page.route("**/v1/page/rows", refuse)
    answer_with(one.page, delta("long " * 2000), DONE)
    one.send("A long answer")
    one.wait_done()
    exchange(one)
    expect(one.page.locator(".toast").filter(has_text="too long for the server")).to_be_visible()
    two = browser_of()
    exchange(two)
    kept = set(texts(two.page))
    assert {f"Answer {number}." for number in range(8)} <= kept
    assert "A long answer" in kept and not any(text.startswith("long long") for text in kept)


@pytest.mark.parametrize("has_store", [True, False])
def test_a_page_without_a_key_or_a_store_asks_for_no_rows(
    service: Server, slow_server: Server, new_page: Callable[..., Page], has_store: bool
) -> None:
    """Conversations stay in the browser, and the page says so."""
    page = new_page()
    if not has_store:
        page.context.add_init_script(f"sessionStorage['carousel.key'] = {KEY!r}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/v1/page/rows" in request.url else None)
    chat = Chat(page, service.url if has_store else slow_server.url)
    page.goto(chat.url + "/")
    expect(page.locator("html[data-ready]")).to_be_attached()
    if has_store:  # a server that knows no key lets nobody in
        expect(page.locator("#key-dialog")).to_be_visible()
        page.keyboard.press("Escape")
    answer_with(page, delta("Yes."), DONE)
    chat.send("Is it so?")
    chat.wait_done()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.locator("#help-button").click()
    expect(page.locator("#kept")).to_have_text("Conversations stay in this browser.")
    assert not asked


WORK = """async ([base, operations]) => {
    const { Store } = await import(`${base}/static/js/store.js`);
    const { Tree } = await import(`${base}/static/js/tree.js`);
    const store = new Store((reason) => { throw new Error(reason); }, () => {});
    await store.open();
    const written = [], deleted = [];
    const add = async (conversation, parent, text) => {
        const message = { id: text, parent, role: "user", content: text, created: Date.now() };
        await store.append(conversation, [message]);
        written.push(message.id);
    };
    for (const [kind, text, at] of operations) {
        const list = store.list(), conversation = list[Math.floor(at * list.length)];
        if (kind === "new" || !conversation) {
            const now = Date.now();
            await add({ id: `c${text}`, title: text, created: now, updated: now, system: "", model: "m", sampling: {},
                messages: [] }, null, text);
            continue;
        }
        const message = conversation.messages[Math.floor(((at * 997) % 1) * conversation.messages.length)];
        if (kind === "rename") await store.change(conversation.id, (row) => (row.title = text));
        else if (kind === "delete") {
            await store.remove(conversation.id);
            deleted.push(...conversation.messages.map(({ id }) => id));
            if (at > 0.5) await store.restore(conversation);
        } else if (!message) await add(conversation, null, text);
        else if (kind === "cut") {
            const branch = new Tree(conversation).branch(message);
            await store.cut(conversation, branch);
            deleted.push(...branch.map(({ id }) => id));
            if (at > 0.5) await store.append(conversation, branch);
        } else await add(conversation, kind === "answer" ? message.id : message.parent, text);
    }
    return { written, deleted };
}"""


EXPORT = """async (base) => {
    const { Store } = await import(`${base}/static/js/store.js`);
    const { asJson } = await import(`${base}/static/js/export.js`);
    const store = new Store((reason) => { throw new Error(reason); }, () => {});
    await store.open();
    return (await asJson(store.list())).join("");
}"""
BROKEN = json.dumps([CHATGPT[0], *mapping(a="b", b="a")])  # the first conversation alone could be imported
FOREIGN = {
    json.dumps(CHATGPT): ["How old is it?\n\n[image: den.png]\n\n[file: list.pdf]\n\n[image: file_9]", "", "42 years.",
                          "I cannot tell."],
    json.dumps(LLAMA): ["Which owl?\n\nnotes.txt\n\n```\nIt is grey.\n```\n\n[image: owl.jpg]", "", "A tawny owl.",
                        "A barn owl."],
    json.dumps(OPEN_WEBUI): ["What time is it?\n\n[image]", "Noon.", "",
                             "It is noon. <details><summary>More</summary>No.</details>"],
    BROKEN: [],
}  # fmt: skip


def state(chat: Chat) -> list[str]:
    """Return all rows of a browser, without the fields that belong to the browser."""
    found = [*rows(chat.page, "conversations"), *rows(chat.page, "messages")]
    own = ("unsent", "changes", "deleted")
    return sorted(
        json.dumps(
            {name: value for name, value in row.items() if name not in own and value is not None}, sort_keys=True
        )
        for row in found
    )


def import_random_file(draw: random.Random, chat: Chat, other: Chat) -> set[str]:
    """Import the export of another browser, another program's file or a broken one, and return the ids of new messages."""
    file = other.page.evaluate(EXPORT, other.url) if draw.random() < 0.4 else draw.choice(list(FOREIGN))
    messages = [] if file in FOREIGN else [each["messages"] for each in json.loads(file)["conversations"]]
    expected = FOREIGN.get(file, [message["content"] for each in messages for message in each])
    known = {
        row["id"] for side in (chat, other) for row in rows(side.page, "messages")
    }  # also those that arrive meanwhile
    import_file(chat.page, "conversations.json", file)
    added = {row["id"]: row["content"] for row in rows(chat.page, "messages") if row["id"] not in known}
    assert sorted(added.values()) == sorted(expected)
    return set(added)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_edits_and_imports_of_two_browsers_are_joined_in_any_order(
    browser_of: Callable[..., Chat], service: Server, seed: int
) -> None:
    """Both browsers end with the same rows, and each message that was written or imported, and not deleted, is in them.

    A file that is imported twice is there twice, and a broken one adds nothing.
    """
    draw = random.Random(seed)
    sides = [browser_of(key_of(seed)), browser_of(key_of(seed))]
    written: set[str] = set()
    deleted: set[str] = set()
    for number in range(8):
        side = draw.randrange(2)
        chat = sides[side]
        kinds = draw.choices(["new", "answer", "edit", "rename", "cut", "delete"], [1, 5, 3, 1, 1, 0.4], k=6)
        operations = [[kind, f"s{seed}n{number}o{i}", draw.random()] for i, kind in enumerate(kinds)]
        done: Any = chat.page.evaluate(WORK, [service.url, operations])
        written |= set(done["written"])
        deleted |= set(done["deleted"])
        chat.reload()
        for _ in range(draw.randrange(3)):
            written |= import_random_file(draw, chat, sides[1 - side])
        if draw.random() < 0.5:
            exchange(chat)
    for chat in (*sides, *sides):
        exchange(chat)
    assert state(sides[0]) == state(sides[1])
    assert written - deleted <= {row["id"] for row in rows(sides[0].page, "messages") if "content" in row}
    expect(sides[0].page.locator("html[data-ready]")).to_be_attached(timeout=ANSWER_MS)
