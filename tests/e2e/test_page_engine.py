"""The engine page against the real engine: seats fill when somebody talks, and everything can also be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

pytestmark = pytest.mark.browser

WAIT_MS = 120_000
LONG = "Tell me a very long story about a fox, a frog and an owl, with every detail"


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser profile with nothing in it."""
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    yield made
    made.close()


@pytest.fixture
def engine(server: Any, context: BrowserContext) -> Page:
    """The engine page, live."""
    page = context.new_page()
    page.goto(server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=WAIT_MS)
    return page


@pytest.fixture
def talk(server: Any, context: BrowserContext) -> Iterator[Callable[[], None]]:
    """Asks for a long answer on a chat page beside; stops it in the end."""
    pages: list[Page] = []

    def ask() -> None:
        page = context.new_page()
        pages.append(page)
        page.goto(server.url + "/")
        expect(page.locator("#loading")).to_be_hidden(timeout=WAIT_MS)
        page.locator("#prompt").fill(LONG)
        page.locator("#prompt").press("Enter")
        expect(page.locator("[data-role=assistant] .body").last).not_to_be_empty(timeout=WAIT_MS)

    yield ask
    for page in pages:
        page.keyboard.press("Escape")


def test_a_seat_fills_when_somebody_talks(engine: Page, talk: Callable[[], None]) -> None:
    """An interactive request appears on a seat of the ring, in the figures and in the ring's description."""
    assert engine.locator("[data-slot]").count() > 0
    talk()
    engine.bring_to_front()
    expect(engine.locator("[data-slot][data-class=interactive]").first).to_be_attached(timeout=WAIT_MS)
    expect(engine.locator("#count-interactive")).not_to_have_text("0")
    expect(engine.locator("#ring-label")).to_contain_text("seats taken")


def test_the_table_says_what_the_ring_shows(engine: Page, talk: Callable[[], None]) -> None:
    """The fallback has one row for each slot, with the request's class and state in words."""
    talk()
    engine.bring_to_front()
    engine.locator("#slots-table summary").click()
    expect(engine.locator("#slots-body tr")).to_have_count(engine.locator("[data-slot]").count())
    expect(engine.locator("#slots-body")).to_contain_text("interactive", timeout=WAIT_MS)


def test_pages_add_up(engine: Page) -> None:
    """The mosaic's cells and figures come from the engine's own books."""
    expect(engine.locator("#pages-note")).to_contain_text("tokens")
    assert engine.locator("#mosaic i").count() > 0


def test_a_phone_shows_it_in_one_column(server: Any, browser: Browser) -> None:
    """At 390 px the page scrolls down only."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=WAIT_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_reduced_motion_stands_still(server: Any, browser: Browser) -> None:
    """For those who asked for less motion the seats do not turn."""
    page = browser.new_page(reduced_motion="reduce")
    page.goto(server.url + "/engine")
    expect(page.locator("[data-slot]").first).to_be_attached(timeout=WAIT_MS)
    seat = page.locator("[data-slot='0']")
    before = seat.get_attribute("transform")
    drawn = page.locator(".spark-line").get_attribute("d")
    expect(page.locator(".spark-line")).not_to_have_attribute("d", drawn or "", timeout=WAIT_MS)
    assert seat.get_attribute("transform") == before
    page.close()


def test_a_lost_connection_is_told_and_mended(server: Any, context: BrowserContext) -> None:
    """The page says that it lost the engine, and is live again by itself."""
    page = context.new_page()
    page.route("**/v1/engine/events", lambda route: route.abort())
    page.goto(server.url + "/engine")
    expect(page.locator("#live")).to_have_attribute("data-state", "lost")
    page.unroute("**/v1/engine/events")
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=WAIT_MS)
