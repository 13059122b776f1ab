"""Take the README's pictures from a real server with the demo model: python -m docs.screenshots"""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.serving import Serving
from tests import chromium

IMAGES = Path(__file__).parent / "images"
QUESTIONS = (
    "How does continuous batching work?",
    "Write a table of the days of the week.",
    "Tell me a story about a fox.",
)


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


def chat(page: Page, url: str, name: str) -> None:
    """A conversation with an answer on its way."""
    page.goto(url)
    box = page.get_by_role("textbox", name="Message")
    for question in QUESTIONS:
        box.fill(question)
        box.press("Enter")
        last = page.locator("[data-role=assistant]").last
        page.wait_for_timeout(700)
        if question is not QUESTIONS[-1]:
            last.and_(page.locator("[aria-busy=false]")).wait_for(timeout=60_000)
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / name)


def main() -> None:
    """Chat in light, the engine in dark."""
    IMAGES.mkdir(exist_ok=True)
    with Serving("--max-num-seqs", "12", "--num-pages", "160") as server, sync_playwright() as playwright:
        url = f"http://{server.host}:{server.port}"
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            chat(context.new_page(), url, f"chat-{scheme}.png")
            enough = threading.Event()
            threads = [
                threading.Thread(target=ask, args=(url, 100 * i + j, tier, tokens, enough))
                for i, (tier, tokens, count) in enumerate(CROWD)
                for j in range(count)
            ]
            page = context.new_page()
            page.set_viewport_size({"width": 1280, "height": 1130})
            page.goto(f"{url}/engine")
            for thread in threads:
                thread.start()
                page.wait_for_timeout(120)
            page.wait_for_timeout(4000)
            page.screenshot(path=IMAGES / f"engine-{scheme}.png")
            enough.set()
            for thread in threads:
                thread.join()
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
