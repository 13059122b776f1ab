"""A server below a path, whose links include the path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import Server


@pytest.fixture(scope="module")
def root_path_server() -> Iterator[Server]:
    running = Server.start("--root-path", "/llm/", "--max-num-seqs", "2")
    yield running
    running.stop()


def test_all_links_of_the_page_work_below_the_root_path(root_path_server: Server):
    """All links of the page are below the path."""
    assert root_path_server.url.endswith("/llm")
    page = httpx.get(root_path_server.url)
    assert page.status_code == 200
    paths = set(re.findall(r'(?:href|src)="(/[^"#]*)', page.text))
    assert len(paths) > 3
    for path in paths:
        assert path.startswith("/llm")
        assert httpx.get(root_path_server.url.removesuffix("/llm") + path).status_code == 200, path


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
def test_a_proxy_may_strip_the_path_or_not(root_path_server: Server, path: str, status: int):
    """The response is the same in both cases, except for a path that is repeated or incomplete."""
    assert httpx.get(root_path_server.url + path).status_code == status
    if not path.startswith(("/llm", "x")):
        assert httpx.get(root_path_server.url.removesuffix("/llm") + path).status_code == status


@pytest.mark.parametrize("prefix", ["/llm", ""])
async def test_a_websocket_works_with_the_root_path_and_without(root_path_server: Server, prefix: str):
    """WebSockets are accepted like a page's requests."""
    url = root_path_server.url.removesuffix("/llm").replace("http", "ws")
    async with connect(f"{url}{prefix}/v1/realtime") as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
