"""Tools over the realtime WebSocket, and sessions that lose their connection, with the scripted model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Server
from tests.e2e.test_realtime import Raw
from tests.limits import HANG_SECONDS

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Return the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL_QUESTION = 'What is the weather in Rome? @call get_weather {"city": "Rome"}'


def user(text: str) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@pytest.fixture(scope="module")
def scripted() -> Iterator[Server]:
    server = Server.start("--served-model-name", "scripted", command=("tests.clients.scripted_server",))
    yield server
    server.stop()


@pytest.fixture
def address(scripted: Server) -> str:
    return scripted.url.replace("http", "ws") + "/v1/realtime"


async def metric(server: Server, name: str) -> float:
    url = f"{server.url}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def test_openai_s_realtime_client_runs_a_tool_in_three_turns(scripted: Server):
    """Call, answer with its output, and a turn that sees both."""
    client = openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="none")
    async with client.realtime.connect(model="scripted") as connection:

        async def answer(**response) -> openai.types.realtime.RealtimeResponse:
            await connection.response.create(response=response)
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.done":
                    assert event.response.status == "completed"
                    return event.response
            raise AssertionError("the connection has ended")

        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["audio"], "tools": [TOOL], "tool_choice": "auto"}
        )
        await connection.conversation.item.create(item=user(CALL_QUESTION))
        [call] = (await answer()).output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Rome"})
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees and cloudy"}
        await connection.conversation.item.create(item=output)
        [message] = (await answer()).output
        assert "18 degrees and cloudy" in message.content[0].text
        await connection.conversation.item.create(item=user("How far are we? @count"))
        [message] = (await answer()).output
        assert message.content[0].text == "Earlier answers: 2; results of tools: 1."
        await connection.conversation.item.create(item=user(CALL_QUESTION))
        [message] = (await answer(tool_choice="none")).output
        assert message.type == "message"
    await client.close()


async def test_a_forced_call_has_all_events_of_a_call(address: str):
    """The session's own choice forces it."""
    async with connect(address) as socket:
        client = Raw(socket)
        choice = {"type": "function", "name": "get_weather"}
        await client.send(type="session.update", session={"tools": [TOOL], "tool_choice": choice})
        assert (await client.until("session.updated"))["session"]["tool_choice"] == choice
        await client.send(type="conversation.item.create", item=user(CALL_QUESTION))
        await client.until("conversation.item.done")
        client.seen.clear()
        await client.send(type="response.create")
        done = await client.until("response.done")
    kinds = [kind for kind in dict.fromkeys(client.kinds()) if kind != "response.function_call_arguments.delta"]
    assert kinds == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    [call] = done["response"]["output"]
    deltas = [event["delta"] for event in client.seen if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"] and json.loads(call["arguments"]) == {"city": "Rome"}


async def start_endless(address: str) -> tuple[Raw, str, str]:
    """Return a client with a running answer, and the ids of its session and response."""
    client = Raw(await connect(address))
    session = (await client.until("session.created"))["session"]["id"]
    await client.send(type="conversation.item.create", item=user("@endless") | {"id": "question"})
    await client.send(type="response.create")
    response = (await client.until("response.created"))["response"]["id"]
    await client.until("response.output_text.delta")
    return client, session, response


async def until_running(server: Server, number: int) -> None:
    """Wait until the server is computing this many answers."""
    async with asyncio.timeout(HANG_SECONDS):
        while await metric(server, "vllm:num_requests_running{") != number:
            await asyncio.sleep(0.01)


async def test_a_session_is_taken_up_after_its_connection_was_lost(scripted: Server, address: str):
    """Its answer has continued, all events of the answer come again, and it can be cancelled."""
    lost, session, response = await start_endless(address)
    lost.socket.transport.abort()
    async with asyncio.timeout(HANG_SECONDS):
        while not await metric(scripted, "carousel:kept_sessions{"):
            await asyncio.sleep(0.01)
    assert await metric(scripted, "vllm:num_requests_running{") == 1
    async with connect(f"{address}?session={session}") as socket:
        client = Raw(socket)
        assert (await client.until("session.created"))["session"]["id"] == session
        assert (await client.until("conversation.item.done"))["item"]["id"] == "question"
        assert (await client.until("response.created"))["response"]["id"] == response
        await client.until("response.output_text.delta")
        await client.send(type="response.cancel")
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "cancelled"
        deltas = [event["delta"] for event in client.seen if event["type"] == "response.output_text.delta"]
        assert done["output"][0]["content"][0]["text"] == "".join(deltas)
    assert await metric(scripted, "carousel:kept_sessions{") == 0
    await until_running(scripted, 0)


async def test_a_session_whose_client_has_closed_it_is_gone(scripted: Server, address: str):
    """Its answers end at once."""
    client, session, _ = await start_endless(address)
    await client.socket.close()
    await until_running(scripted, 0)
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address, additional_headers={"X-Carousel-Session": session}):
            pass
    error = json.loads(refused.value.response.body)["error"]
    assert (refused.value.response.status_code, error["code"]) == (404, "session_not_found")


async def test_a_client_may_come_back_while_the_server_believes_it_is_connected(scripted: Server, address: str):
    """A phone that changes its network is such a client. Its old connection is closed."""
    client, session, response = await start_endless(address)
    async with connect(f"{address}?session={session}") as socket:
        again = Raw(socket)
        assert (await again.until("response.created"))["response"]["id"] == response
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("never")
        assert closed.value.rcvd is not None and "taken up" in closed.value.rcvd.reason
        await again.until("response.output_text.delta")
    await until_running(scripted, 0)
