"""Take the README's pictures from real servers: python -m docs.screenshots

The chat page is served with the default model (`make model`), the engine page with the demo model.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, ViewportSize, sync_playwright

from app.text.packaged_model import DEFAULT_MODEL
from benchmarks.serving import Serving
from tests import chromium

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
IMAGES = Path(__file__).parent / "images"
QUESTIONS = (
    "Give me three tips for sleeping better",
    "Describe a sunset at the beach in one paragraph",
)
CITY = {"type": "object", "properties": {"city": {"enum": ["Ghent", "Bruges"]}}, "required": ["city"]}
TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {**CITY, "additionalProperties": False},
}
RESULT = "Clear sky, 19 degrees Celsius."

ANSWER_CHARACTERS = 150  # of an answer on its way: two lines

CROWD = (("flex", 500, 16), ("default", 300, 5), ("priority", 60, 4))  # tier, tokens of an answer, callers


def ask(url: str, number: int, tier: str, tokens: int, enough: threading.Event) -> None:
    """One of the crowd: its next request follows its last answer."""
    while not enough.is_set():
        number += 1000
        body = {
            "messages": [{"role": "user", "content": f"Tell me a long story about {number} foxes."}],
            "max_tokens": tokens,
            "service_tier": tier,
            "ignore_eos": True,
            "seed": number,
        }
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request).read()


def send(page: Page, text: str) -> None:
    """Send a message, and wait for the place of its answer."""
    answers = page.locator("[data-role=assistant]")
    number = answers.count()
    box = page.get_by_role("textbox", name="Message")
    box.fill(text)
    box.press("Enter")
    answers.nth(number).wait_for()


def wait_begun(page: Page) -> None:
    """Wait until the last answer has some text."""
    begun = "least => [...document.querySelectorAll('[data-role=assistant]')].at(-1).innerText.length >= least"
    page.wait_for_function(begun, arg=ANSWER_CHARACTERS)


def wait_complete(page: Page) -> None:
    """Wait until the last answer is complete."""
    last = page.locator("[data-role=assistant]").last
    last.and_(page.locator("[aria-busy=false]")).wait_for(timeout=60_000)


def chat(page: Page, url: str, name: str) -> None:
    """Show a conversation with an answer on its way."""
    page.goto(url)
    for question in QUESTIONS[:-1]:
        send(page, question)
        wait_complete(page)
    send(page, QUESTIONS[-1])
    wait_begun(page)
    page.screenshot(path=IMAGES / name)


def tool_call(page: Page, url: str, name: str) -> None:
    """Show a tool call, and the field for its result."""
    page.goto(url)
    page.locator("#settings-open").click()
    page.locator("#settings .fold summary").click()
    page.locator("#settings [name=tools]").fill(json.dumps(TOOL))
    page.get_by_label("Require a call for each message").check()
    page.keyboard.press("Escape")
    send(page, "What is the weather in Ghent?")
    wait_complete(page)
    page.get_by_label("Result of get_weather").first.fill(RESULT)
    page.screenshot(path=IMAGES / name)


def engine(page: Page, url: str, name: str) -> None:
    """Show the engine under the load of a crowd."""
    enough = threading.Event()
    threads = [
        threading.Thread(target=ask, args=(url, 100 * i + j, tier, tokens, enough))
        for i, (tier, tokens, count) in enumerate(CROWD)
        for j in range(count)
    ]
    page.set_viewport_size({"width": 1280, "height": 1130})
    page.goto(f"{url}/engine")
    for thread in threads:
        thread.start()
        page.wait_for_timeout(120)
    page.wait_for_timeout(4000)
    page.screenshot(path=IMAGES / name)
    enough.set()
    for thread in threads:
        thread.join()


def main() -> None:
    """Take every picture; those of conversations and of the engine also in dark."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox", "--disable-gpu"])
        contexts = {scheme: browser.new_context(viewport=VIEWPORT, color_scheme=scheme) for scheme in SCHEMES}
        with Serving(model=DEFAULT_MODEL.name) as server:
            for scheme, context in contexts.items():
                chat(context.new_page(), server.url, f"chat-{scheme}.png")
            other = browser.new_context(viewport=VIEWPORT, color_scheme="light")  # without the conversation
            tool_call(other.new_page(), server.url, "tools-light.png")
        with Serving("--max-num-seqs", "12", "--num-pages", "160") as server:
            for scheme, context in contexts.items():
                engine(context.new_page(), server.url, f"engine-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
