"""Tool servers: a real MCP server in another process, and hostile ones."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.errors import ApiError
from app.mcp import servers as module
from app.mcp.addresses import read_addresses
from app.mcp.servers import MAX_CALLS, MAX_SESSIONS, MAX_TENANT_CALLS, ToolServers
from app.mcp.tools import MAX_TOOLS
from tests.app.mcp.hostile import INITIALIZED, Answer, Handler, endless, hostile, never
from tests.limits import HANG_SECONDS
from tests.mcp_server import McpServer

Outcomes = list[tuple[str, str]]


@asynccontextmanager
async def opened(*entries: str) -> AsyncIterator[tuple[ToolServers, Outcomes]]:
    """Yield the servers of entries of the option, and the outcomes of their calls."""
    outcomes: Outcomes = []
    tools = ToolServers(
        read_addresses(",".join(entries)), lambda server, outcome, _: outcomes.append((server, outcome))
    )
    yield tools, outcomes
    await tools.close()


@pytest.fixture(scope="module")
def weather() -> Iterator[McpServer]:
    server = McpServer.start()
    yield server
    server.stop()


def has_lines(path: Path, lines: list[str]) -> bool:
    return path.exists() and path.read_text().splitlines() == lines


async def until_written(path: Path, lines: list[str]) -> None:
    """Wait until a file has these lines."""
    async with asyncio.timeout(HANG_SECONDS):
        while not has_lines(path, lines):
            await asyncio.sleep(0.01)


async def test_tools_are_listed_and_called(weather: McpServer):
    """An error of a tool, an unknown tool and wrong arguments are results."""
    async with opened(f"w={weather.url}") as (tools, outcomes):
        [listed] = await tools.listed()
        assert (listed.name, listed.error) == ("w", None)
        first = listed.tools[0]
        assert (first.name, first.description) == ("get_weather", "Get the current weather in a city.")
        assert first.input_schema["required"] == ["city"]
        result = await tools.call("w", "get_weather", {"city": "Ghent"}, "a")
        assert (result.content, result.is_error) == ("18 degrees in Ghent", False)
        failed = await tools.call("w", "fail", {}, "a")
        assert failed.is_error and "there is no such city" in failed.content
        assert (await tools.call("w", "none", {}, "a")).is_error
        assert (await tools.call("w", "get_weather", {}, "a")).is_error
        assert outcomes == [("w", "ok"), *[("w", "tool_error")] * 3]


async def test_the_secret_of_the_operator_is_sent(weather: McpServer):
    """With no other credentials or cookies."""
    async with opened("w=" + weather.url.replace("://", "://token@")) as (tools, _):
        headers = json.loads((await tools.call("w", "headers", {}, "a")).content)
    assert headers["authorization"] == "Bearer token" and "cookie" not in headers


async def test_each_tenant_has_a_session_of_its_own(weather: McpServer):
    """What a tool keeps in the session of one is not shown to another; a server that was restarted gets a new one."""
    own = McpServer.start()
    async with opened(f"w={own.url}") as (tools, _):
        counts = [(await tools.call("w", "count", {}, tenant)).content for tenant in ("a", "a", "b")]
        assert counts == ["1", "2", "1"]
        own.stop()
        with pytest.raises(ApiError, match="'w' cannot be reached"):
            await tools.call("w", "count", {}, "a")
        own = McpServer.start(own.port)
        counts = await asyncio.gather(*(tools.call("w", "count", {}, "a") for _ in range(4)))
        assert sorted(each.content for each in counts) == ["1", "2", "3", "4"]
        own.stop()


async def test_a_cancelled_call_ends_on_the_server(weather: McpServer, tmp_path: Path):
    path = tmp_path / "calls"
    async with opened(f"w={weather.url}") as (tools, outcomes):
        call = asyncio.create_task(tools.call("w", "wait", {"path": str(path)}, "a"))
        await until_written(path, ["begun"])
        call.cancel()
        await until_written(path, ["begun", "cancelled"])
    assert outcomes == [("w", "left")]


async def test_a_call_that_takes_too_long_ends(weather: McpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the server too."""
    monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    path = tmp_path / "calls"
    async with opened(f"w={weather.url}") as (tools, outcomes):
        with pytest.raises(ApiError, match=r"did not answer within 0.5 s") as late:
            await tools.call("w", "wait", {"path": str(path)}, "a")
        assert (late.value.status, late.value.code, outcomes) == (504, "tool_timeout", [("w", "timeout")])
        await until_written(path, ["begun", "cancelled"])


async def test_calls_at_the_same_time_are_limited():
    """By tenant, and in all; another tenant is served, and so is the same one when a call has ended."""
    with hostile({"tools/call": never}) as server:
        async with opened(f"x={server.url}") as (tools, outcomes):

            async def begin(tenant: str, count: int) -> list[asyncio.Task[Any]]:
                calls = [asyncio.create_task(tools.call("x", "t", {}, tenant)) for _ in range(count)]
                await asyncio.sleep(0)
                return calls

            calls = await begin("a", MAX_TENANT_CALLS)
            with pytest.raises(ApiError, match=f"{MAX_TENANT_CALLS} tool calls of this key") as refused:
                await tools.call("x", "t", {}, "a")
            assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
            for at in range(MAX_CALLS // MAX_TENANT_CALLS - 1):
                calls += await begin(f"b{at}", MAX_TENANT_CALLS)
            with pytest.raises(ApiError, match=f"{MAX_CALLS} tool calls of all keys") as busy:
                await tools.call("x", "t", {}, "c")
            assert (busy.value.status, busy.value.code) == (503, "tool_calls_busy")
            assert outcomes == [("x", "refused")] * 2
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert not tools._calls
            [call] = await begin("a", 1)
            assert not call.done()
            call.cancel()


async def test_sessions_are_limited():
    """The tenant whose last call is the longest ago gets a new one."""
    with hostile({"tools/call": lambda handler: handler.send_result({"content": []})}) as server:
        async with opened(f"x={server.url}") as (tools, _):
            for at in range(MAX_SESSIONS + 10):
                tools._servers["x"].session(f"t{at}")
            assert len(tools._servers["x"].sessions) == MAX_SESSIONS
            await tools.call("x", "t", {}, "t0")
            assert [method for method, _ in server.requests].count("initialize") == 1


async def test_a_list_is_read_once_a_minute(monkeypatch: pytest.MonkeyPatch):
    """Also for clients that ask together, and one that leaves; a server without a list is asked again sooner."""
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with hostile({}) as server:
        async with opened(f"x={server.url}", "y=http://127.0.0.1:1/") as (tools, _):

            def reads() -> int:
                return [method for method, _ in server.requests].count("tools/list")

            leaving, *others = [asyncio.create_task(tools.listed()) for _ in range(5)]
            while tools._servers["x"].tools is None:
                await asyncio.sleep(0)
            leaving.cancel()
            found, *_ = await asyncio.gather(*others)
            assert [each.error for each in found] == [None, "the tool server 'y' cannot be reached"] and reads() == 1
            now = 59.0
            failed = tools._servers["y"].tools
            await tools.listed()
            assert reads() == 1 and tools._servers["y"].tools is not failed
            now = 61.0
            await tools.listed()
            assert reads() == 2


def redirect(handler: Handler) -> None:
    handler.send(b"", status=307, Location="http://127.0.0.1:9/elsewhere")


def not_json(handler: Handler) -> None:
    handler.send(b"<html>Welcome</html>", Content_Type="text/html")


def compressed(handler: Handler) -> None:
    handler.send(b"\x1f\x8b" + b"0" * 100, Content_Encoding="gzip")


def large(handler: Handler) -> None:
    handler.send_result({"content": [{"type": "text", "text": "x" * 50_000_000}]})


def cut_stream(handler: Handler) -> None:
    handler.send(b"data: {}\n\n", Content_Type="text/event-stream")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (endless("application/json", b"[" * 4096), "sent more than 1,048,576 bytes"),
        (endless("text/event-stream", b"data: x"), "sent more than 1,048,576 bytes"),
        (endless("text/event-stream", b'data: {"method": "ping", "id": 3}\n\n'), "sent more than 1,048,576 bytes"),
        (large, "sent more than 1,048,576 bytes"),
        (redirect, "redirect to 'http://127.0.0.1:9/elsewhere', and redirects are not followed"),
        (not_json, "status 200 and no message"),
        (compressed, "sent a compressed answer"),
        (cut_stream, "without a result"),
        (lambda handler: handler.send(b"{"), "valid JSON-RPC message"),
        (lambda handler: handler.send(b"", status=401), r"refused access \(status 401\)"),
        (lambda handler: handler.send(b"{}", status=500), r"\(status 500\) without a result"),
        (lambda handler: handler.send_result([1]), "valid|its version"),
        (lambda handler: handler.wfile.write(b"no HTTP"), "did not speak HTTP"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_a_hostile_answer_is_an_error_of_its_server(method: str, answer: Answer, reason: str):
    """The other servers are listed."""
    with hostile({method: answer}) as server, hostile({}) as other:
        async with opened(f"x={server.url}", f"y={other.url}") as (tools, outcomes):
            error, good = [each.error for each in await tools.listed()]
            assert good is None
            if method != "tools/list":
                with pytest.raises(ApiError) as refused:
                    await tools.call("x", "t", {}, "a")
                assert (refused.value.status, refused.value.code) == (502, "tool_server_failed")
                assert outcomes == [("x", "failed")]
                error = str(refused.value)
    assert error is not None and error.startswith("the tool server 'x' ") and re.search(reason, error)


async def test_a_server_that_never_answers_has_no_tools(monkeypatch: pytest.MonkeyPatch):
    """Its list ends after some seconds, during which the others are not read again."""
    monkeypatch.setattr(module, "LIST_SECONDS", 0.2)
    with hostile({"initialize": never}) as server:
        async with opened(f"x={server.url}") as (tools, _):
            [found] = await tools.listed()
    assert (found.tools, found.error) == ([], "the tool server 'x' did not answer within 0.2 s")


def page_of(count: int, **fields: object) -> Answer:
    """Return a page of a list that says that there is another one."""
    tools = [{"name": f"t{at}", "inputSchema": {}} for at in range(count)]
    return lambda handler: handler.send_result({"tools": tools, "nextCursor": "more", **fields})


async def test_a_list_without_end_is_cut():
    """In its pages and in its tools, of which those with control characters in their names are left out."""
    with hostile({"tools/list": page_of(10)}) as few, hostile({"tools/list": page_of(10_000, nextCursor=None)}) as many:
        async with opened(f"x={few.url}", f"y={many.url}") as (tools, _):
            found = await tools.listed()
            assert [method for method, _ in few.requests].count("tools/list") == module.MAX_PAGES
    assert [len(each.tools) for each in found] == [10 * module.MAX_PAGES, MAX_TOOLS]
    assert all(each.error is not None and each.error.startswith("tools left out: ") for each in found)


async def test_an_unknown_version_is_refused():
    with hostile(
        {"initialize": lambda handler: handler.send_result({**INITIALIZED, "protocolVersion": "1\n"})}
    ) as server:
        async with opened(f"x={server.url}") as (tools, _):
            [found] = await tools.listed()
    assert found.error == "the tool server 'x' has version '1' of the protocol, which is not supported"


async def test_a_session_id_is_bounded():
    """It is sent back with each request."""
    with hostile({"initialize": lambda handler: handler.send_result(INITIALIZED, Mcp_Session_Id="x" * 2000)}) as server:
        async with opened(f"x={server.url}") as (tools, _):
            [found] = await tools.listed()
    assert found.error == "the tool server 'x' sent an invalid session id"


async def test_a_server_that_loses_every_session_is_asked_twice():
    with hostile(
        {
            "initialize": lambda handler: handler.send_result(INITIALIZED, Mcp_Session_Id="s"),
            "tools/call": lambda handler: handler.send(b"", status=404),
        }
    ) as server:
        async with opened(f"x={server.url}") as (tools, _):
            with pytest.raises(ApiError, match="does not know the session"):
                await tools.call("x", "t", {}, "a")
    assert [method for method, _ in server.requests].count("tools/call") == 2


async def test_cookies_of_a_server_are_not_kept():
    """They would be those of another tenant."""
    with hostile({"initialize": lambda handler: handler.send_result(INITIALIZED, Set_Cookie="a=b")}) as server:
        async with opened(f"x={server.url}") as (tools, _):
            await tools.listed()
    assert all("cookie" not in headers for _, headers in server.requests)
