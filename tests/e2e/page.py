"""The chat page as browser tests see it: its markup is named here and nowhere else."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

LONG = "Tell me a very long story about a fox, a frog and an owl, with every detail"
ANSWER_MS = 120_000  # a small machine, a cold model: long, but never endless
SHORT = 40  # tokens: most tests need an answer, not a long one
DEFAULTS = """try {
    localStorage["carousel.defaults"] ??= JSON.stringify({ system: "", sampling: { max_tokens: SHORT } });
} catch {}""".replace("SHORT", str(SHORT))


class Chat:
    """What the tests say about the page, so that its markup is named in one place."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.prompt = page.locator("#prompt")
        self.stop = page.locator("#stop")
        self.answers = page.locator("[data-role=assistant]")
        self.questions = page.locator("[data-role=user]")
        self.rows = page.locator("#conversations [data-id]")
        self.status = page.locator("#status")

    def open(self) -> Chat:
        self.page.goto(self.url + "/")
        expect(self.page.locator("html[data-ready]")).to_be_attached()
        expect(self.page.locator("#loading")).to_be_hidden(timeout=ANSWER_MS)
        return self

    def send(self, text: str) -> None:
        self.prompt.fill(text)
        expect(self.page.locator("#send")).to_be_enabled(timeout=ANSWER_MS)
        self.prompt.press("Enter")

    def send_long(self, max_tokens: int | None = None) -> None:
        """Asks for an answer that is still being written when the test looks at it: one that may not end by itself
        before it has so many tokens, or as many as there is room for."""
        self.set_field("max_tokens", str(max_tokens or ""))
        self.page.route("**/v1/chat/completions", _without_end)
        self.send(LONG)

    def text(self) -> Locator:
        return self.answers.last.locator(".body")

    def wait_begun(self) -> None:
        expect(self.text()).not_to_be_empty(timeout=ANSWER_MS)

    def wait_done(self) -> None:
        expect(self.answers.last).to_have_attribute("aria-busy", "false", timeout=ANSWER_MS)

    def wait_saved(self, field: str) -> None:
        """Wait until the row of the last answer, which is saved now and then, has this field."""
        self.page.wait_for_function(
            """async (field) => {
                const open = indexedDB.open("carousel");
                await new Promise((done) => (open.onsuccess = done));
                const all = open.result.transaction("messages").objectStore("messages").getAll();
                await new Promise((done) => (all.onsuccess = done));
                open.result.close();
                const shown = all.result.filter(({ conversation }) => location.hash.endsWith(conversation));
                return Boolean(shown.sort((a, b) => a.position - b.position).at(-1)?.[field]);
            }""",
            arg=field,
        )

    def reload(self) -> None:
        """Reload the page once all writes that it has begun are kept: a write that is on its way ends with the page.

        IndexedDB grants a transaction over the same tables only after all that were begun before it.
        """
        self.page.evaluate(
            """async () => {
                const open = indexedDB.open("carousel");
                await new Promise((done) => (open.onsuccess = done));
                const last = open.result.transaction(["conversations", "messages"], "readwrite");
                last.objectStore("conversations").count();
                await new Promise((done) => (last.oncomplete = done));
                open.result.close();
            }"""
        )
        self.page.reload()

    def set_field(self, name: str, value: str) -> None:
        self.page.locator("#settings-open").click()
        self.page.locator(f"#settings [name={name}]").fill(value)
        self.page.keyboard.press("Escape")
        expect(self.page.locator("#settings")).to_be_hidden()


def _without_end(route: Route) -> None:
    """The page's own request, but the model's end-of-text token does not end the answer."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))


def sse(*parts: str | dict[str, Any]) -> str:
    """A stream as the server writes it: a dict is a chunk with an id, a text stands as it is."""
    blocks = []
    for i, part in enumerate(parts):
        data = part if isinstance(part, str) else f"id: s.0.{i}\ndata: {json.dumps(part)}"
        blocks.append(data + "\n\n")
    return "".join(blocks)


def delta(text: str) -> dict[str, Any]:
    """A chunk that says some text."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def answer_with(page: Page, *parts: str | dict[str, Any]) -> None:
    """Lets the page's next questions be answered by this stream instead of the server's."""
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=200, body=sse(*parts), headers={"content-type": "text/event-stream", "x-carousel-stream": "s"}
        ),
    )


def begin_with(page: Page, *parts: str | dict[str, Any]) -> None:
    """The same for a stream that stays open: a fulfilled route would close at once and show the reconnect instead."""
    page.evaluate(
        """(text) => {
        const fetch = window.fetch;
        const start = (sink) => sink.enqueue(new TextEncoder().encode(text));
        window.fetch = async (url, init) => !String(url).endsWith("/v1/chat/completions") ? fetch(url, init)
            : new Response(new ReadableStream({ start }), { headers: { "x-carousel-stream": "s" } });
    }""",
        sse(*parts),
    )
