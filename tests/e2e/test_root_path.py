"""A server below a path: what it says of itself is where it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import Server


@pytest.fixture(scope="module")
def below() -> Iterator[Server]:
    running = Server.start("--root-path", "/llm/", "--max-num-seqs", "2")
    yield running
    running.stop()


def test_the_page_at_the_address_that_is_told_has_all_that_it_asks_for(below: Server):
    """Below the path."""
    assert below.url.endswith("/llm")
    page = httpx.get(below.url)
    assert page.status_code == 200
    asked = set(re.findall(r'(?:href|src)="(/[^"#]*)', page.text))
    assert len(asked) > 3
    for path in asked:
        assert path.startswith("/llm")
        assert httpx.get(below.url.removesuffix("/llm") + path).status_code == 200, path


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 200),
        ("/", 200),
        ("/engine", 200),
        ("/v1/models", 200),
        ("/static/css/base.css", 200),
        ("/v1/realtime", 426),
        ("/llm/v1/models", 404),
        ("x/v1/models", 404),
    ],
)
def test_a_proxy_may_strip_the_path_or_not(below: Server, path: str, status: int):
    """The answer is the same; and the path is whole, and there once."""
    assert httpx.get(below.url + path).status_code == status
    if not path.startswith(("/llm", "x")):
        assert httpx.get(below.url.removesuffix("/llm") + path).status_code == status


@pytest.mark.parametrize("prefix", ["/llm", ""])
async def test_a_websocket_may_come_with_the_path_or_without(below: Server, prefix: str):
    """As a page's requests do."""
    url = below.url.removesuffix("/llm").replace("http", "ws")
    async with connect(f"{url}{prefix}/v1/realtime") as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
