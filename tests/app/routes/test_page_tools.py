"""/v1/page/tools over HTTP: keys, refusals, a client that disconnects, and metrics."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.admission.tenants import tenant_of_key
from app.mcp.addresses import read_addresses
from app.options import parse
from app.protocols.page_tools import MAX_ARGUMENT_BYTES
from app.settings import SettingsError
from tests.app.mcp.hostile import hostile
from tests.app.mcp.test_servers import until_written
from tests.app.routes.test_http import make, ready
from tests.conftest import ROOT
from tests.limits import HANG_SECONDS
from tests.mcp_server import McpServer

TOOLS = "/v1/page/tools"
CALL = f"{TOOLS}/call"
ALICE = {"Authorization": "Bearer alice"}
OPTIONS: dict[str, Any] = {"tenants": (tenant_of_key("alice"),), "public_metrics": True}
WEATHER = {"server": "w", "name": "get_weather", "arguments": {"city": "Ghent"}}


@pytest.fixture(scope="module")
def weather() -> Iterator[McpServer]:
    server = McpServer.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def http(weather: McpServer) -> Iterator[TestClient]:
    with make(mcp=read_addresses(f"w={weather.url}"), **OPTIONS) as client:
        yield ready(client)


def test_a_tool_is_listed_and_runs(http: TestClient):
    """Calls are counted by server and outcome."""
    answer = http.get(TOOLS, headers=ALICE).json()
    assert answer["object"] == "list" and [server["name"] for server in answer["data"]] == ["w"]
    assert answer["data"][0]["error"] is None
    assert answer["data"][0]["tools"][0] == {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "input_schema": {
            "properties": {"city": {"title": "City", "type": "string"}},
            "required": ["city"],
            "title": "get_weatherArguments",
            "type": "object",
        },
    }
    assert http.post(CALL, json=WEATHER, headers=ALICE).json() == {"content": "18 degrees in Ghent", "is_error": False}
    metrics = http.get("/metrics").text
    assert 'carousel:tool_calls_total{model_name="fake",outcome="ok",server="w"} 1.0' in metrics
    assert 'carousel:tool_call_seconds_count{model_name="fake",server="w"} 1.0' in metrics


def test_the_key_of_the_client_stays_here(http: TestClient):
    """None of its headers is passed on."""
    sent = {**ALICE, "X-Api-Key": "alice", "Cookie": "alice=1", "X-Other": "alice"}
    answer = http.post(CALL, json={"server": "w", "name": "headers", "arguments": {}}, headers=sent)
    headers = json.loads(answer.json()["content"])
    assert "mcp-session-id" in headers and "alice" not in str(headers)


def test_both_routes_need_a_key(http: TestClient):
    assert http.get(TOOLS).status_code == 401
    assert http.post(CALL, json=WEATHER).status_code == 401


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"server": None}, 400, "server"),
        ({"server": "v"}, 404, "server must be one of 'w', got 'v'"),
        ({"server": "http://127.0.0.1/"}, 404, "server must be one of 'w'"),
        ({"name": "a\nb"}, 400, "name"),
        ({"name": "a" * 129}, 400, "name"),
        ({"arguments": "{}"}, 400, "arguments"),
        ({"arguments": {"x": "y" * MAX_ARGUMENT_BYTES}}, 400, "arguments must have at most 65,536 bytes"),
        ({"url": "http://127.0.0.1/"}, 400, "unsupported parameter: url"),
    ],
)
def test_a_wrong_call_is_refused_by_name(http: TestClient, fields: dict[str, Any], status: int, message: str):
    """No client chooses an address."""
    answer = http.post(CALL, json=WEATHER | fields, headers=ALICE)
    assert answer.status_code == status and answer.json()["error"]["message"].startswith(message), answer.text


def test_without_servers_both_routes_say_so():
    with make(**OPTIONS) as client:
        for answer in (client.get(TOOLS, headers=ALICE), client.post(CALL, json=WEATHER, headers=ALICE)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "page_tools_need_mcp")
            assert "--mcp" in answer.json()["error"]["message"]


def test_a_server_that_fails_is_a_502():
    """Its list has the reason."""
    with hostile({"tools/call": lambda handler: handler.send(b"", status=500)}) as server:
        servers = read_addresses(f"w={server.url},v=http://127.0.0.1:1/")
        with make(mcp=servers, **OPTIONS) as client:
            failed = client.post(CALL, json=WEATHER, headers=ALICE)
            [good, bad] = client.get(TOOLS, headers=ALICE).json()["data"]
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "tool_server_failed")
    assert good["error"] is None and bad == {
        "name": "v",
        "tools": [],
        "error": "the tool server 'v' cannot be reached",
    }


async def test_a_client_that_disconnects_cancels_its_call(weather: McpServer, tmp_path: Path):
    """The tool is cancelled too."""
    path = tmp_path / "calls"
    body = json.dumps({"server": "w", "name": "wait", "arguments": {"path": str(path)}}).encode()
    left = asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(_: object) -> None: ...

    scope = {
        "type": "http", "method": "POST", "path": CALL, "raw_path": CALL.encode(), "query_string": b"", "root_path": "",
        "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
        "headers": [(b"host", b"127.0.0.1:8000"), (b"authorization", b"Bearer alice")],
    }  # fmt: skip
    app = make(mcp=read_addresses(f"w={weather.url}"), **OPTIONS).app
    running = asyncio.create_task(app(scope, receive, send))
    await until_written(path, ["begun"])
    left.set()
    await running
    await app.state.tool_servers.close()
    await until_written(path, ["begun", "cancelled"])


def test_a_server_without_tools_starts_without_their_client():
    """So that its start stays as fast."""
    code = "import sys, app.cli.serve; sys.exit('httpx2' in sys.modules or 'app.mcp.servers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=HANG_SECONDS).returncode == 0


def test_tools_are_only_for_clients_with_keys():
    """The refusal names both options; a wrong URL is refused by name too."""
    with pytest.raises(SettingsError, match="mcp requires api_key or keys_file"):
        parse(["demo", "--mcp", "http://127.0.0.1/mcp"], {})
    assert parse(["demo"], {"CAROUSEL_MCP": "w=http://t@127.0.0.1/mcp", "CAROUSEL_API_KEY": "alice"}).mcp[0].name == "w"
