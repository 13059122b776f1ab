"""The engine page against the real engine: slots fill with requests, and all figures are readable as text."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from tests.e2e import states

pytestmark = pytest.mark.browser

WAIT_MS = 120_000


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Yield a browser profile with empty storage."""
    browser_context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield browser_context
    browser_context.close()


@pytest.fixture
def engine(server: Any, context: BrowserContext) -> Page:
    """Return the engine page, connected to its feed."""
    page = context.new_page()
    page.goto(server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=WAIT_MS)
    return page


@pytest.fixture
def start_interactive(server: Any) -> Iterator[Callable[[], None]]:
    """Yield a function that starts a thread with one long interactive answer after another, until the test ends."""
    started, stopped = threading.Event(), threading.Event()
    body = {
        "messages": [{"role": "user", "content": "Tell me a very long story"}],
        "service_tier": "priority",
        "stream": True,
        "ignore_eos": True,
    }

    def send_requests() -> None:
        with httpx.Client(base_url=server.url, timeout=WAIT_MS / 1000) as http:
            while not stopped.is_set():
                with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        started.set()
                        if stopped.is_set():
                            return

    thread = threading.Thread(target=send_requests)

    def start() -> None:
        thread.start()
        assert started.wait(WAIT_MS / 1000)

    yield start
    stopped.set()
    if thread.ident is not None:
        thread.join()


def test_a_request_fills_a_slot(engine: Page, start_interactive: Callable[[], None]) -> None:
    """An interactive request appears in a slot of the ring, in the figures and in the ring's description."""
    assert engine.locator("[data-slot]").count() > 0
    start_interactive()
    expect(engine.locator("[data-slot][data-class=interactive]").first).to_be_attached(timeout=WAIT_MS)
    expect(engine.locator("#count-interactive")).not_to_have_text("0")
    expect(engine.locator("#ring-label")).to_contain_text("slots occupied")


def test_the_table_has_the_contents_of_the_ring(engine: Page, start_interactive: Callable[[], None]) -> None:
    """The fallback has one row for each slot, with the request's class and state in words."""
    start_interactive()
    engine.locator("#slots-table summary").click()
    expect(engine.locator("#slots-body tr")).to_have_count(engine.locator("[data-slot]").count())
    expect(engine.locator("#slots-body")).to_contain_text("interactive", timeout=WAIT_MS)


def test_pages_add_up(engine: Page) -> None:
    """The cells and figures come from the engine's counters, and the note has the number of pages per cell."""
    expect(engine.locator("#pages-note")).to_have_text(re.compile(r"^[\d,]+ pages of \d+ tokens; a cell is \d+ pages$"))
    assert engine.locator("#mosaic i").count() > 0


def test_kept_pages_are_a_part_of_the_cached_ones(server: Any, context: BrowserContext) -> None:
    """Cells of both have the share of the cached pages, a quarter; the kept ones come first, and no label is cut."""
    page = context.new_page()
    states.open_engine(page, server.url, "busy")
    cells = page.locator("#mosaic i").count()
    kept, cached = (page.locator(f'#mosaic [data-kind="{kind}"]').count() for kind in ("kept", "cached"))
    assert abs(kept - cells / 10) <= 1 and abs(kept + cached - cells / 4) <= 1
    expect(page.locator('#mosaic [data-kind="kept"] + [data-kind="cached"]')).to_have_count(1)
    assert page.locator("#pages-figures").evaluate("list => list.scrollWidth <= list.clientWidth")


def test_latency_columns_have_standard_names(engine: Page) -> None:
    """The p99 column has an explanation, and recomputed preemptions are listed."""
    heads = engine.locator(".latency thead th", has_text="p99")
    expect(heads).to_have_count(2)
    expect(heads.first).to_have_attribute("title", "99 of 100 were faster")
    expect(engine.locator(".feed .tile-note")).to_contain_text("recomputed")


def test_a_phone_shows_it_in_one_column(server: Any, browser: Browser) -> None:
    """The page scrolls only vertically at 390 px, and the latency table is complete."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=WAIT_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.locator("#latency-body tr")).to_have_count(3)
    wrap = page.locator(".latency .table-wrap")
    assert wrap.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    page.close()


def test_reduced_motion_stops_the_ring(server: Any, browser: Browser) -> None:
    """With reduced motion the slots do not rotate."""
    page = browser.new_page(reduced_motion="reduce")
    page.goto(server.url + "/engine")
    expect(page.locator("[data-slot]").first).to_be_attached(timeout=WAIT_MS)
    slot = page.locator("[data-slot='0']")
    before = slot.get_attribute("transform")
    drawn = page.locator(".spark-line").get_attribute("d")
    expect(page.locator(".spark-line")).not_to_have_attribute("d", drawn or "", timeout=WAIT_MS)
    assert slot.get_attribute("transform") == before
    page.close()


def test_a_lost_connection_is_shown_and_restored(server: Any, context: BrowserContext) -> None:
    """The page shows that it lost the engine, and reconnects by itself."""
    page = context.new_page()
    page.route("**/v1/engine/events", lambda route: route.abort())
    page.goto(server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "lost")
    page.unroute("**/v1/engine/events")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=WAIT_MS)


def test_an_idle_engine_has_no_batch_and_no_step(engine: Page) -> None:
    """The figures of its last step are not shown as current."""
    texts = engine.evaluate(
        """async () => {
            const base = document.querySelector("script[type=module]").src.replace("main.bundle.js", "");
            const { showFigures } = await import(base + "panels.js");
            const rest = { batch: { decode: 32, prefill_tokens: 5 }, tokens_per_s: 0, prefill_tokens_per_s: 0, step_ms: 1,
                prefix_hit_rate: 0, requests_finished: 0, busy: 0 };
            return [[null, null], [{ class: "batch", state: "decode" }, null]].map((slots) => {
                showFigures({ ...rest, slots });
                return ["batch", "step-ms"].map((id) => document.getElementById(id).textContent);
            });
        }"""
    )
    assert texts == [["0", "–"], ["32 + 5", "1.00 ms"]]


@pytest.mark.parametrize(("state", "text"), [("idle", "0 of 8 slots"), ("busy", "7 of 8 slots, step ")])
def test_the_hub_shows_the_step_of_a_busy_engine_only(server: Any, browser: Browser, state: str, text: str) -> None:
    """An idle engine's number of steps says nothing."""
    page = browser.new_page()
    states.open_engine(page, server.url, state)
    shown = page.locator(".hub-small").text_content() or ""
    page.close()
    assert shown.startswith(text)
    assert ("step" in shown) == ("step" in text)


def test_tokens_of_a_step_are_dots_above_their_slot(server: Any, browser: Browser) -> None:
    """One for each token, if there are several; the figures are those of the last seconds."""
    page = browser.new_page()
    states.open_engine(page, server.url, "busy")
    marks = page.locator(".step-tokens").evaluate_all(
        """(all) => all.map((mark) => mark.getAttribute("visibility") === "hidden" ? 1
            : mark.getAttribute("stroke-dasharray").split(" ").length / 2)"""
    )
    assert marks == list(states.STEP_TOKENS)
    texts = [page.locator(f"#{name}").text_content() for name in ("step-tokens", "right-drafts", "count-several")]
    assert texts == ["3.7", "70 %", "4"]
    assert "several tokens in the last step of 4" in (page.locator("#ring-label").text_content() or "")
    page.close()


def test_an_engine_without_drafts_has_no_figures_of_them(server: Any, browser: Browser) -> None:
    """They would say nothing on a device that has none."""
    page = browser.new_page()
    states.open_engine(page, server.url, "idle")
    expect(page.locator(".of-drafts")).to_have_count(3)
    assert not any(each.is_visible() for each in page.locator(".of-drafts").all())
    page.close()


@pytest.mark.parametrize("height", [720, 800, 900, 1080])
@pytest.mark.parametrize("width", [1280, 900, 390])
def test_rows_of_the_waiting_list_are_not_cut(server: Any, browser: Browser, width: int, height: int) -> None:
    """At least five requests are visible whole, and two paused ones; the rest is scrolled to."""
    page = browser.new_page(viewport={"width": width, "height": height})
    states.open_engine(page, server.url, "crowded")
    for name, least in (("queue", 5), ("paused", 2)):
        expect(page.locator(f"#{name} li")).to_have_count(12)
        whole, cut = page.locator(f"#{name}").evaluate(
            """(list) => {
                const frame = list.getBoundingClientRect(), tile = list.closest(".tile").getBoundingClientRect();
                const bottom = Math.min(frame.bottom, tile.bottom) + 0.5;
                const rows = [...list.children].map((row) => row.getBoundingClientRect());
                return [rows.filter((row) => row.bottom <= bottom).length,
                    rows.filter((row) => row.top < bottom - 1 && row.bottom > bottom).length];
            }"""
        )
        assert whole >= least, name
        assert cut == 0, name
    page.close()


def test_a_key_is_asked_for_and_used(server: Any, context: BrowserContext) -> None:
    """A server that requires a key gets the one of the dialog; a wrong one is named, and the feed begins at once."""
    page = context.new_page()
    keys: list[str | None] = []

    def guard(route: Route) -> None:
        keys.append(route.request.headers.get("authorization"))
        if keys[-1] == "Bearer s3cret":
            return route.continue_()
        error = {"message": "a valid API key is needed", "code": "invalid_api_key", "type": "x"}
        return route.fulfill(status=401, json={"error": error})

    page.route("**/v1/engine/events", guard)
    page.goto(server.url + "/engine")
    reason = page.locator("#key-why")
    expect(reason).to_contain_text("The server needs an API key.")
    expect(page.locator("#live")).to_have_text("a key is needed")
    page.keyboard.press("Escape")
    page.wait_for_timeout(1500)
    expect(page.locator("#key-dialog")).to_be_hidden()
    page.locator("#key-button").click()
    page.locator("#key-input").fill("wrong")
    page.locator("#key-input").press("Enter")
    expect(reason).to_contain_text("The server refused this API key.")
    page.locator("#key-input").fill("s3cret")
    page.locator("#key-input").press("Enter")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    assert keys[0] is None
    assert "s3cret" not in page.evaluate("JSON.stringify(localStorage)")
