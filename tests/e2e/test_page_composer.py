"""The message box: drafts, files, and Enter while the model loads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import Server
from tests.e2e.page import Chat, answer_with, delta

pytestmark = pytest.mark.browser

DONE = "id: s.0.9\ndata: [DONE]"
COUNT_WRITES = """(() => {
    const { setItem } = Storage.prototype;
    window.writes = [];
    Storage.prototype.setItem = function (name, value) {
        if (name.startsWith("carousel.draft.")) window.writes.push(value.length);
        return setItem.call(this, name, value);
    };
})()"""
TRANSFER = """([kind, data]) => {
    const transfer = new DataTransfer();
    if (data.file) transfer.items.add(new File([new Uint8Array([137, 80, 78, 71, 0])], data.file, { type: "image/png" }));
    if (data.text) transfer.setData("text/plain", data.text);
    const target = document.querySelector(data.on);
    const event = kind === "paste"
        ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true })
        : new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true });
    target.dispatchEvent(event);
    return event.defaultPrevented;
}"""


def test_a_draft_is_written_once_a_second(chat: Chat) -> None:
    """Thirty keys are one write, and a reload before it loses nothing."""
    chat.page.evaluate(COUNT_WRITES)
    chat.prompt.press_sequentially("thirty letters of a long draft")
    assert len(chat.page.evaluate("writes")) <= 1
    chat.page.wait_for_function("() => writes.length > 0")
    before = len(chat.page.evaluate("writes"))
    chat.page.wait_for_timeout(1500)
    assert len(chat.page.evaluate("writes")) == before
    chat.prompt.press_sequentially(" and its end")
    chat.reload()
    expect(chat.prompt).to_have_value("thirty letters of a long draft and its end")


def test_a_draft_beyond_64_kb_is_not_stored(chat: Chat) -> None:
    """Half of a text could be sent by mistake, so the stored draft is removed; the text in the box stays."""
    chat.prompt.fill("short")
    chat.page.wait_for_function("() => localStorage['carousel.draft.new'] === '\"short\"'")
    chat.page.evaluate(COUNT_WRITES)
    chat.prompt.fill("x" * 40_000)
    chat.page.wait_for_function("() => !('carousel.draft.new' in localStorage)")
    assert chat.page.evaluate("writes") == []
    expect(chat.prompt).to_have_value("x" * 40_000)
    chat.prompt.fill("x" * 32_000)
    chat.page.wait_for_function("() => writes.length > 0")
    assert 2 * chat.page.evaluate("Math.max(...writes)") <= 65_536


def test_a_sent_message_leaves_no_draft(chat: Chat) -> None:
    """The draft is removed with the message, not a second later."""
    answer_with(chat.page, delta("Yes."), DONE)
    chat.prompt.fill("Is it so?")
    chat.page.wait_for_function("() => 'carousel.draft.new' in localStorage")
    chat.prompt.press("Enter")
    chat.wait_done()
    assert chat.page.evaluate("Object.keys(localStorage).filter((name) => name.includes('draft'))") == []


@pytest.mark.parametrize("kind", ["drop", "paste"])
@pytest.mark.parametrize("on", ["#prompt", "#thread"])
def test_a_binary_file_is_refused_in_a_sentence(chat: Chat, kind: str, on: str) -> None:
    """Nothing is sent, and the browser does not open it."""
    chat.wait_models()
    requests: list[str] = []
    chat.page.on("request", lambda request: requests.append(request.url))
    file = {"file": "cat.png", "on": on}
    if kind == "drop":
        assert chat.page.evaluate(TRANSFER, ["dragover", file])
    assert chat.page.evaluate(TRANSFER, [kind, file])
    expect(chat.page.locator(".toast")).to_have_text("cat.png is not a text file. Nothing was uploaded.")
    expect(chat.prompt).to_have_value("")
    expect(chat.page.locator("#files .chip")).to_have_count(0)
    assert requests == []


def test_text_is_dropped_and_pasted_as_before(chat: Chat) -> None:
    """Text may come with an image of it; beside a field, a dropped link does not replace the page."""
    assert not chat.page.evaluate(TRANSFER, ["drop", {"text": "words", "on": "#prompt"}])
    assert not chat.page.evaluate(TRANSFER, ["paste", {"text": "words", "file": "words.png", "on": "#prompt"}])
    assert chat.page.evaluate(TRANSFER, ["drop", {"text": "https://example.org", "on": "#thread"}])
    expect(chat.page.locator(".toast")).to_have_count(0)


def test_enter_while_the_model_loads_is_explained(slow_server: Server, new_page: Callable[..., Page]) -> None:
    """A sentence under the box says why nothing was sent, also to screen readers, until the model is ready."""
    page = new_page()
    ready: list[bool] = []
    error = {"message": "Loading.", "type": "server_error", "param": None, "code": "loading"}

    def health(route: Route) -> None:
        if ready:
            return route.fulfill(json={"status": "ready"})
        return route.fulfill(status=503, json={"error": error, "loading": {"done": 1, "total": 4, "what": "weights"}})

    page.route("**/health", health)
    page.goto(slow_server.url + "/")
    expect(page.locator("#loading")).to_be_visible()
    page.locator("#prompt").fill("Hello")
    page.locator("#prompt").press("Enter")
    note = "Not sent: the model is not ready yet. Send it again when it is."
    expect(page.locator("#composer-note")).to_have_text(note)
    expect(page.locator("#composer-note")).to_be_visible()
    expect(page.locator("#status")).to_have_text(note)
    expect(page.locator("#prompt")).to_have_value("Hello")
    ready.append(True)
    expect(page.locator("#composer-note")).to_be_empty()
    answer_with(page, delta("Hi."), DONE)
    page.locator("#prompt").press("Enter")
    expect(page.locator("[data-role=assistant] .body")).to_have_text("Hi.")
