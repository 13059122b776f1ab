"""The API documentation in a browser, and its examples on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from playwright.sync_api import Page, expect

from app.protocols.openapi.operations import OPERATIONS
from tests.conftest import Server
from tests.e2e.states import DESK, PHONE
from tests.e2e.test_page_access import faults
from tests.limits import HANG_SECONDS
from tests.mcp_server import McpServer

RESPONSES = "/v1/responses"
BODIES = [
    pytest.param(path, name, id=f"{path} {name}")
    for (_, path), operation in OPERATIONS.items()
    for name in operation.examples or ()
]


@pytest.fixture(scope="module")
def server_with_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with a key, a store and an MCP server, which rows and tools of the page need."""
    store = tmp_path_factory.mktemp("docs") / "s.db"
    tools = McpServer.start()
    running = Server.start("--api-key", "key-alice", "--store", str(store), "--mcp", f"weather={tools.url}")
    yield running
    running.stop()
    tools.stop()


@pytest.fixture(scope="module")
def described(server: Server) -> dict[str, Any]:
    """Return the document of a running server."""
    return httpx.get(f"{server.url}/openapi.json").json()


def with_ids(server: Server, path: str) -> str:
    """Return a path with the ids of stored records, or of a request that has not ended."""
    if "{completion_id}" in path:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "store": True}
        stored = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=HANG_SECONDS).json()
        return path.replace("{completion_id}", stored["id"])
    if "{conversation_id}" in path:
        made = httpx.post(f"{server.url}/v1/conversations", json={}, timeout=HANG_SECONDS).json()
        return path.replace("{conversation_id}", made["id"])
    if "{request_id}" in path:
        body = {"input": "Tell me a story.", "background": True, "max_output_tokens": 1900, "ignore_eos": True}
        begun = httpx.post(f"{server.url}{RESPONSES}", json=body, timeout=HANG_SECONDS).json()
        return path.replace("{request_id}", begun["id"])
    return path


@pytest.mark.parametrize(("path", "name"), BODIES)
def test_examples_are_answered_as_described(
    request: pytest.FixtureRequest, described: dict[str, Any], path: str, name: str
) -> None:
    """The schema of the answer accepts the server's answer; a streamed one has the declared media type."""
    operation = described["paths"][path]["post"]
    needs_key = {} not in operation["security"]
    server: Server = request.getfixturevalue("server_with_key" if needs_key else "server")
    headers = {"Authorization": "Bearer key-alice"} if needs_key else {}
    body = operation["requestBody"]["content"]["application/json"]["examples"][name]["value"]
    target = with_ids(server, path)
    answer = httpx.post(server.url + target, json=body, headers=headers, timeout=HANG_SECONDS)
    if "{request_id}" in path:
        httpx.post(f"{server.url}{RESPONSES}/{target.rpartition('/')[2]}/cancel", timeout=HANG_SECONDS)
    assert answer.status_code == 200, answer.text
    content = operation["responses"]["200"]["content"]
    media_type = answer.headers["content-type"].partition(";")[0]
    assert media_type == ("text/event-stream" if body.get("stream") else "application/json")
    if media_type == "application/json":
        schema = {"components": described["components"], **content[media_type]["schema"]}
        Draft202012Validator(schema).validate(answer.json())
    assert media_type in content


@pytest.mark.browser
@pytest.mark.parametrize("device", [DESK, PHONE], ids=["desk", "phone"])
def test_the_documentation_is_accessible(server: Server, new_page: Callable[..., Page], device: dict[str, Any]) -> None:
    """It loads without messages in the console, has no fault with all parts unfolded, and fits the window."""
    page = new_page(**device)
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(f"{server.url}/docs")
    expect(page.get_by_role("heading", name="POST /v1/chat/completions", exact=True)).to_be_visible()
    assert faults(page) == []
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert messages == []


@pytest.mark.browser
def test_links_of_the_documentation_lead_to_routes_and_objects(server: Server, new_page: Callable[..., Page]) -> None:
    """The list leads to a route, and the type of a field to its object."""
    page = new_page()
    page.goto(f"{server.url}/docs")
    page.get_by_role("navigation").get_by_role("link", name="POST /v1/messages", exact=True).click()
    section = page.locator("#post_v1_messages")
    expect(section).to_be_in_viewport()
    section.get_by_text("Fields (").click()
    section.get_by_role("link", name="AnthropicMessage").click()
    expect(page.locator("#AnthropicMessage")).to_be_in_viewport()
