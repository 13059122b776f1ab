"""Three answers side by side while processes of the server are killed: none loses or repeats text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Server
from tests.e2e.page import ANSWER_MS, Chat
from tests.e2e.test_api_processes import processes, wait_until
from tests.e2e.test_journal import kill, wait_until_restored
from tests.e2e.test_page_store import rows
from tests.e2e.test_page_tree import menu

pytestmark = pytest.mark.browser

SLOW = ("--max-num-seqs", "4", "--kernels", "torch")  # so that answers take some seconds


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server with the same store each time."""
    servers: list[Server] = []

    def begin(*options: str) -> Server:
        servers.append(Server.start("--store", str(tmp_path / "store.db"), *SLOW, *options))
        wait_until_restored(servers[-1])
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()
        server.assert_no_traceback()


def three(chat: Chat) -> Locator:
    return chat.page.locator(".side-by-side [data-role=assistant]")


def wait_for_text(chat: Chat) -> None:
    """Wait until more text has arrived in each of the three answers that has not ended."""
    before = [len(text) for text in three(chat).locator(".body").all_inner_texts()]
    chat.page.wait_for_function(
        """(before) => [...document.querySelectorAll(".side-by-side [data-role=assistant]")].every(
            (answer, i) => answer.ariaBusy === "false"
                || answer.querySelector(".body").innerText.length >= before[i] + 20)""",
        arg=before,
        timeout=ANSWER_MS,
    )


def wait_for_end(chat: Chat) -> list[str]:
    """Return the three stored texts when all are complete, in order of their choices; the page shows no error."""
    for answer in three(chat).all():
        expect(answer).to_have_attribute("aria-busy", "false")
    expect(chat.page.locator(".trouble, .wait, .toast").locator("visible=true")).to_have_count(0)
    stored = [row for row in rows(chat.page, "messages") if "choice" in row]
    newest = max(stored, key=lambda row: row["created"])["run"]
    last = sorted((row for row in stored if row["run"] == newest), key=lambda row: row["choice"])
    assert [row["state"] for row in last] == ["done"] * 3
    return [row["content"] for row in last]


def check_three_answers(page: Page, url: str, kills: list[Callable[[], None]]) -> None:
    """Compare three answers during which processes are killed, with a reload after each, with undisturbed ones."""
    chat = Chat(page, url).open()
    chat.set_field("seed", "7")
    chat.send_long(20)
    chat.wait_done()
    chat.set_field("max_tokens", "500")
    menu(chat, chat.answers.last, "Three answers at once")
    expect(three(chat)).to_have_count(3)
    undisturbed = wait_for_end(chat)
    three(chat).first.get_by_role("button", name="Go on with this one").click()
    menu(chat, chat.answers.last, "Three answers at once")
    expect(three(chat)).to_have_count(3)
    for kill_some in kills:
        wait_for_text(chat)
        expect(three(chat).first).to_have_attribute("aria-busy", "true")
        kill_some()
        wait_for_text(chat)
        chat.reload()
        expect(three(chat)).to_have_count(3)
    texts = wait_for_end(chat)
    assert texts == undisturbed
    assert len(set(texts)) == 3


def test_three_answers_go_on_when_the_server_was_killed(
    start: Callable[..., Server], new_page: Callable[..., Page]
) -> None:
    """The next server with the same store continues them."""
    server = start()

    def restart() -> None:
        nonlocal server
        kill(server)
        server = start("--port", server.url.rpartition(":")[2])

    check_three_answers(new_page(), server.url, [restart, restart])


def test_three_answers_go_on_when_api_processes_were_killed(
    start: Callable[..., Server], new_page: Callable[..., Page]
) -> None:
    """Each of two is killed, so one of them was that of the browser's connection."""
    server = start("--api-processes", "2")

    def kill_one(index: int) -> None:
        killed = processes(server, "supervised_api")[index]
        killed.kill()
        wait_until(lambda: len([each for each in processes(server, "supervised_api") if each != killed]) == 2)

    check_three_answers(new_page(), server.url, [lambda: kill_one(0), lambda: kill_one(0)])


def test_three_answers_go_on_when_the_engine_was_killed(
    start: Callable[..., Server], new_page: Callable[..., Page]
) -> None:
    """The API process starts another engine, which computes them again from where they were."""
    server = start()
    kill_engine = lambda: os.kill(server.engine.pid, signal.SIGKILL)  # noqa: E731
    check_three_answers(new_page(), server.url, [kill_engine, kill_engine])
