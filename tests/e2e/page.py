"""Page object of the chat page; its markup is named only here."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Locator, Page, Request, Route, expect

LONG = "Tell me a very long story about a fox, a frog and an owl, with every detail"
ANSWER_MS = 120_000  # long enough for a small machine with a cold model
SHORT = 40  # tokens: enough for most tests
DEFAULTS = """try {
    localStorage["carousel.titles"] ??= "false";
    localStorage["carousel.defaults"] ??= JSON.stringify({ system: "", sampling: { max_tokens: SHORT } });
} catch {}""".replace("SHORT", str(SHORT))


def is_question(request: Request) -> bool:
    """Return whether a request asks for an answer."""
    return request.method == "POST" and request.url.endswith("/v1/chat/completions")


class Chat:
    """Locators and actions of the chat page."""

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

    def wait_models(self) -> None:
        """Wait for the list of models, the last request of a page that opens."""
        is_read = "() => performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/v1/models'))"
        self.page.wait_for_function(is_read, timeout=ANSWER_MS)

    def send(self, text: str) -> None:
        self.prompt.fill(text)
        expect(self.page.locator("#send")).to_be_enabled(timeout=ANSWER_MS)
        self.prompt.press("Enter")

    def send_long(self, max_tokens: int | None = None) -> None:
        """Ask for an answer that is still being generated when the test looks at it.

        It does not end before it has `max_tokens` tokens, or as many as fit the context.
        """
        self.set_field("max_tokens", str(max_tokens or ""))
        self.page.route("**/v1/chat/completions", _ignore_eos)
        self.send(LONG)

    def text(self) -> Locator:
        return self.answers.last.locator(".body")

    def wait_started(self) -> None:
        expect(self.text()).not_to_be_empty(timeout=ANSWER_MS)

    def wait_done(self) -> None:
        expect(self.answers.last).to_have_attribute("aria-busy", "false", timeout=ANSWER_MS)

    def wait_saved(self, field: str) -> None:
        """Wait until the row of the last answer, which is saved from time to time, has this field."""
        self.page.wait_for_function(
            """async (field) => {
                const open = indexedDB.open("carousel");
                await new Promise((done) => (open.onsuccess = done));
                const all = open.result.transaction("messages").objectStore("messages").getAll();
                await new Promise((done) => (all.onsuccess = done));
                open.result.close();
                const isShown = ({ conversation, role }) =>
                    role === "assistant" && location.hash.endsWith(conversation);
                const shown = all.result.filter(isShown);
                return Boolean(shown.sort((a, b) => a.created - b.created).at(-1)?.[field]);
            }""",
            arg=field,
        )

    def reload(self) -> None:
        """Reload the page after all its pending writes are stored, since a reload aborts unfinished ones.

        IndexedDB grants a transaction over the same tables only after all earlier ones.
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


def _ignore_eos(route: Route) -> None:
    """Continue the page's own request with `ignore_eos`, so that an EOS token does not end the answer."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))


def sse(*parts: str | dict[str, Any]) -> str:
    """Return a stream in the server's format: a dict is a chunk with an id, and a text is sent as it is."""
    blocks = []
    for i, part in enumerate(parts):
        data = part if isinstance(part, str) else f"id: s.0.{i}\ndata: {json.dumps(part)}"
        blocks.append(data + "\n\n")
    return "".join(blocks)


def delta(text: str) -> dict[str, Any]:
    """Return a chunk with some text."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def reasoning_delta(text: str) -> dict[str, Any]:
    """Return a chunk with some reasoning."""
    return {"choices": [{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}]}


def call_delta(index: int, arguments: str, **first: str) -> dict[str, Any]:
    """Return a chunk with a piece of a tool call; `first` has the id and name of a call that begins."""
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if first:
        piece |= {"id": first["id"], "type": "function", "function": {"name": first["name"], "arguments": arguments}}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}, "finish_reason": None}]}


def answer_with(page: Page, *parts: str | dict[str, Any]) -> None:
    """Let this stream answer the page's next questions instead of the server's."""
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=200, body=sse(*parts), headers={"content-type": "text/event-stream", "x-carousel-stream": "s"}
        ),
    )


def begin_with(page: Page, *parts: str | dict[str, Any]) -> None:
    """Like `answer_with` for a stream that stays open; a fulfilled route would close at once and show the reconnect.

    The page's function `push` adds text to it.
    """
    page.evaluate(
        """(text) => {
        const fetch = window.fetch;
        const start = (sink) => {
            window.push = (text) => sink.enqueue(new TextEncoder().encode(text));
            window.push(text);
        };
        window.fetch = async (url, init) => !String(url).endsWith("/v1/chat/completions") ? fetch(url, init)
            : new Response(new ReadableStream({ start }), { headers: { "x-carousel-stream": "s" } });
    }""",
        sse(*parts),
    )
