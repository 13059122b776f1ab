"""Realtime sessions that survive the end of the API process, in a second process with the same store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Server
from tests.e2e.test_journal import kill, start  # noqa: F401  (a fixture)
from tests.e2e.test_realtime import LONG, Raw
from tests.limits import HANG_SECONDS

TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
SETTINGS = {"instructions": "Be brief.", "max_output_tokens": 300, "seed": 11, "tools": TOOLS, "tool_choice": "none"}


@asynccontextmanager
async def opened(server: Server, session: str = "") -> AsyncIterator[Raw]:
    """Yield a connection to a new session, or to one that is taken up."""
    url = f"{server.url.replace('http', 'ws')}/v1/realtime" + (f"?session={session}" if session else "")
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            try:
                socket = await connect(url)
                break
            except InvalidStatus as refused:
                if refused.response.status_code != 503:
                    raise
                await asyncio.sleep(0.05)
    async with socket:
        yield Raw(socket)


async def begin(client: Raw) -> str:
    """Set a session up, ask a question and return the session's id."""
    session = (await client.until("session.created"))["session"]["id"]
    await client.send(type="session.update", session=SETTINGS)
    await client.send(type="conversation.item.create", item={**LONG, "id": "question"})
    await client.send(type="response.create")
    await client.until("response.created")
    return str(session)


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in output]


async def test_a_session_goes_on_in_the_next_process(start: Callable[..., Server]):  # noqa: F811
    """With its fields and items, and with the response in progress, whose text is that of an undisturbed one. The next
    response answers all of it.
    """
    server = start()
    async with opened(server) as client:
        await begin(client)
        expected = (await client.until("response.done"))["response"]
    async with opened(server) as client:
        session = await begin(client)
        for _ in range(40):
            delta = await client.until("response.output_text.delta")
        kill(server)
    server = start()
    async with opened(server, session) as client:
        created = (await client.until("session.created"))["session"]
        assert created["id"] == session and created["instructions"] == "Be brief."
        assert [tool["name"] for tool in created["tools"]] == ["weather"]
        done = (await client.until("response.done"))["response"]
        assert done["id"] == delta["response_id"] and done["output"][0]["id"] == delta["item_id"]
        assert without_ids(done["output"]) == without_ids(expected["output"])
        assert done["usage"]["output_tokens"] == expected["usage"]["output_tokens"]
        added = [event["item"]["id"] for event in client.seen if event["type"] == "conversation.item.added"]
        assert added == ["question", done["output"][0]["id"]]
        await client.send(type="response.create")
        again = (await client.until("response.done"))["response"]
        assert again["usage"]["input_tokens"] > done["usage"]["input_tokens"] + done["usage"]["output_tokens"] / 2


async def test_items_of_a_session_are_there_after_a_restart(start: Callable[..., Server]):  # noqa: F811
    """Also after an orderly one, at which the server closes the connection. A session that its client has closed is
    gone.
    """
    server = start()
    async with opened(server) as closed:
        gone = (await closed.until("session.created"))["session"]["id"]
    async with opened(server) as client:
        session = await begin(client)
        done = await client.until("response.done")
        server.process.terminate()
        with pytest.raises(ConnectionClosed):
            await client.until("session.ended")
    server.process.wait(HANG_SECONDS)
    server = start()
    async with opened(server, session) as client:
        await client.until("session.created")
        await client.send(type="conversation.item.retrieve", item_id=done["response"]["output"][0]["id"])
        item = (await client.until("conversation.item.retrieved"))["item"]
        assert item == done["response"]["output"][0]
    with pytest.raises(InvalidStatus) as refused:
        async with opened(server, gone):
            pass
    assert b"session_not_found" in refused.value.response.body
