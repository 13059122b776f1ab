"""The options for the pages are rendered into the pages and cannot break the markup."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

from app.routes import pages
from app.routes.pages import DEMO_EXAMPLES, EXAMPLES
from tests.app.routes.test_http import make


def meta(text: str, name: str) -> str:
    """Return the content of one of the page's meta tags."""
    found = re.search(rf"""<meta name="carousel-{name}" content=(["'])(.*?)\1>""", text)
    assert found, name
    return unescape(found[2])


def test_the_operator_s_texts_are_in_the_page():
    """Title, examples and system prompt may contain any characters."""
    hostile = """<u>'"&</u>"""
    options = {"page_title": hostile, "page_examples": f"One\n\n {hostile} \n", "page_system_prompt": hostile}
    http = make(**options)
    for path in ("/", "/engine"):
        text = http.get(path).text
        assert "<u>" not in text
        assert meta(text, "title") == meta(text, "system-prompt") == hostile
    assert json.loads(meta(http.get("/").text, "examples")) == ["One", hostile]


def test_without_options_the_page_has_its_own_texts():
    """An empty list of examples is a choice; by default there are examples."""
    assert json.loads(meta(make().get("/").text, "examples")) == EXAMPLES
    assert json.loads(meta(make(page_examples="").get("/").text, "examples")) == []
    assert meta(make().get("/").text, "title") == "Carousel"


def test_the_bundled_model_gets_questions_about_its_subjects(monkeypatch):
    """It can answer few others."""
    monkeypatch.setattr(pages, "demo_model", lambda: Path("fake").resolve())  # the model of `make`
    assert json.loads(meta(make().get("/").text, "examples")) == DEMO_EXAMPLES != EXAMPLES


def test_the_page_has_the_sampling_defaults_of_the_server(monkeypatch):
    """They are the checkpoint's settings, and the protocol's defaults for others."""
    http = make()
    monkeypatch.setattr(http.app.state.service.text, "sampling_defaults", {"temperature": 0.6, "top_k": 20})
    assert json.loads(meta(http.get("/").text, "sampling")) == {
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
