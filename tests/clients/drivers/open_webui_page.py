"""Open WebUI: its page in Chromium, with the tools that it offers to a model by default."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
from agent import ANSWER
from playwright.sync_api import Page, expect, sync_playwright

START_SECONDS = 120.0  # it imports torch and migrates an empty database
PAGE_MS = 30_000
TOOL = "get_current_timestamp"
CLOSED_PORT = "http://127.0.0.1:1"
FOLDER = Path.home() / "open-webui"
ENVIRONMENT = os.environ | {
    "DATA_DIR": str(FOLDER),
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "none",
    "OFFLINE_MODE": "True",
    "ENABLE_OLLAMA_API": "False",
    # The first connection has the models that the server lists, and the second one a name that a user has entered.
    "OPENAI_API_BASE_URLS": f"{common.SCRIPTED_URL}/v1;{common.SCRIPTED_URL}/v1",
    "OPENAI_API_KEYS": "none;none",
    "OPENAI_API_CONFIGS": json.dumps({"1": {"model_ids": [common.UNKNOWN_MODEL]}}),
}


class OpenWebUI:
    """A page of Open WebUI; its markup is named only here."""

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._url = url
        self._answer = page.locator(".chat-assistant")
        self._stop = page.get_by_role("button", name="Stop", exact=True)

    def close_release_notes(self) -> None:
        """Close the dialog that a new user sees."""
        self._page.goto(self._url)
        self._page.get_by_role("button", name="Okay, Let's Go!").click()

    def chat(self) -> None:
        """Ask for a text."""
        self._ask("Hello")
        expect(self._answer).to_contain_text(ANSWER)
        expect(self._stop).to_be_hidden()

    def stream(self) -> None:
        """See an answer grow before it is complete."""
        self._ask(common.ENDLESS_QUESTION)
        expect(self._answer).to_contain_text("on and")
        length = len(self._answer.inner_text())
        expect(self._answer).to_have_text(re.compile(f".{{{length + 1}}}", re.DOTALL))
        self._interrupt()

    def turns(self) -> None:
        """Ask in three turns of a chat."""
        self._ask(common.COUNT_QUESTION)
        for answers in range(3):
            if answers:
                self._send(common.COUNT_QUESTION)
            expect(self._answer.nth(answers)).to_contain_text(common.counts(answers))
            expect(self._stop).to_be_hidden()

    def tools(self) -> None:
        """Ask for the time, which the model reads with a tool of Open WebUI, in two turns, and for their number."""
        question = f"What time is it? @call {TOOL} {{}}"
        self._ask(question)
        for turn in range(2):
            if turn:
                self._send(question)
            answer = self._answer.nth(turn)
            expect(answer).to_contain_text(f"View Result from {TOOL}")
            expect(answer).to_contain_text('The tool returned: {"current_timestamp":')
            expect(self._stop).to_be_hidden()
        self._send(common.COUNT_QUESTION)
        expect(self._answer.nth(2)).to_contain_text(common.counts(4, 2))

    def errors(self) -> None:
        """Ask an unknown model."""
        self._ask("Hello", common.UNKNOWN_MODEL)
        expect(self._answer).to_contain_text(f"the model '{common.UNKNOWN_MODEL}' does not exist")

    def cancel(self) -> None:
        """Interrupt an endless answer."""
        self._ask(common.ENDLESS_QUESTION)
        common.wait_for_running(1)
        self._interrupt()
        common.wait_for_running(0)

    def _ask(self, question: str, model: str = common.SCRIPTED_MODEL) -> None:
        """Begin a chat with a model."""
        self._page.goto(f"{self._url}/?models={model}")
        self._send(question)

    def _send(self, question: str) -> None:
        """Send a message of the open chat."""
        self._page.locator("#chat-input").fill(question)
        self._page.locator("#send-message-button").click()

    def _interrupt(self) -> None:
        self._stop.click()
        expect(self._stop).to_be_hidden()


@contextmanager
def running_open_webui() -> Iterator[str]:
    """Run Open WebUI for the duration of a block, and yield its URL. Its log goes to standard error."""
    FOLDER.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=FOLDER, stdout=sys.stderr) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(url, process)
            yield url
        finally:
            process.kill()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a started Open WebUI answers. Raises `RuntimeError` if it ends, and `TimeoutError`."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Open WebUI has not started within {START_SECONDS:g} s") from error
            time.sleep(0.2)
    raise RuntimeError(f"Open WebUI ended with {process.returncode}")


@contextmanager
def open_page() -> Iterator[Page]:
    """Open a page for the duration of a block.

    The page uses the proxy of the driver. Chromium's own requests to other hosts, which no option prevents, go to a
    closed port instead.
    """
    chromium = {"executable_path": os.environ["CAROUSEL_CHROMIUM"], "proxy": {"server": CLOSED_PORT}}
    proxy = {"server": os.environ["HTTP_PROXY"], "bypass": os.environ["NO_PROXY"]}
    with sync_playwright() as playwright, playwright.chromium.launch(**chromium) as browser:
        page = browser.new_page(proxy=proxy)
        page.set_default_timeout(PAGE_MS)
        yield page


expect.set_options(timeout=PAGE_MS)
with running_open_webui() as url, open_page() as page:
    client = OpenWebUI(page, url)
    client.close_release_notes()
    common.run_features(client.chat, client.stream, client.turns, client.tools, client.errors, client.cancel)
