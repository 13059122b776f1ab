"""WebSockets of /v1/responses with `carousel serve --api-processes 2`: what the other process has."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import Server
from tests.e2e.test_api_processes import OPTIONS, only
from tests.e2e.test_realtime_processes import connection_to
from tests.e2e.test_responses_socket import COUNT, ENDS, STORY, Socket, text_of

RESPONSES = "/v1/responses"
KEY = "key-alice"
FIELDS: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_output_tokens": 20}


@pytest.fixture(scope="module")
def service() -> Iterator[Server]:
    """Yield a service of two API processes and an engine, with a key."""
    server = Server.start(*OPTIONS, "--api-key", KEY, "--store", "none")
    yield server
    assert server.stop() == -signal.SIGTERM
    assert not any("Traceback" in line for line in server.log)


@asynccontextmanager
async def connected_at(service: Server, index: int, as_browser: bool = False) -> AsyncIterator[Socket]:
    """Yield a connection to a process. as_browser: with the key as a subprotocol."""
    headers = {} if as_browser else {"Authorization": f"Bearer {KEY}"}
    options: dict[str, Any] = {"subprotocols": ["realtime", f"openai-insecure-api-key.{KEY}"]} if as_browser else {}
    url = service.url.replace("http", "ws") + RESPONSES
    sock = await connection_to(service, index)
    async with connect(url, sock=sock, additional_headers=headers, **options) as client:
        yield Socket(client)


@pytest.fixture
def first(service: Server) -> Iterator[httpx.Client]:
    """Yield a client of the first process."""
    with only(service, 0) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        yield client


async def post(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = await asyncio.to_thread(lambda: client.post(path, json=fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("as_browser", [False, True])
async def test_a_chain_goes_on_at_the_other_process(service: Server, first: httpx.Client, as_browser: bool):
    """With the same text as at its own one, stored or not, back again, and after its beginning was deleted."""
    begun = await post(first, RESPONSES, input=STORY, **FIELDS)
    wanted = await post(first, RESPONSES, input=COUNT, previous_response_id=begun["id"], **FIELDS)
    async with connected_at(service, 1, as_browser) as socket:
        continued = [
            await socket.create(input=COUNT, previous_response_id=begun["id"], store=store, **FIELDS)
            for store in (True, False)
        ]
        for each in continued:
            assert text_of(each) == text_of(wanted) and each["previous_response_id"] == begun["id"]
            assert each["usage"]["input_tokens"] == wanted["usage"]["input_tokens"]
        item = begun["output"][0]["id"]
        named = await socket.create(input=[{"type": "item_reference", "id": item}, {"role": "user", "content": COUNT}])
        assert named["status"] in ("completed", "incomplete")
        await asyncio.to_thread(lambda: first.delete(f"{RESPONSES}/{begun['id']}"))
        third = await socket.create(input="Thanks.", previous_response_id=continued[0]["id"], **FIELDS)
    back = await post(first, RESPONSES, input="Thanks.", previous_response_id=continued[0]["id"], **FIELDS)
    same = await post(first, RESPONSES, input="Thanks.", previous_response_id=wanted["id"], **FIELDS)
    assert text_of(third) == text_of(back) == text_of(same)
    assert {each["usage"]["input_tokens"] for each in (third, back)} == {same["usage"]["input_tokens"]}


async def test_a_response_of_the_other_process_is_cancelled(service: Server, first: httpx.Client):
    running = await post(first, RESPONSES, input=STORY, background=True, max_output_tokens=1500, ignore_eos=True)
    async with connected_at(service, 1) as socket:
        await socket.send("response.cancel", response_id=running["id"])
        await socket.send("response.cancel", response_id="resp_unknown")  # frames are handled in order
        [error] = await socket.until(*ENDS)
        assert error["error"]["code"] == "response_not_found"
    ended = await asyncio.to_thread(lambda: first.get(f"{RESPONSES}/{running['id']}").json())
    assert ended["status"] == "cancelled"


async def test_what_the_other_process_keeps_to_itself_is_refused_by_name(service: Server, first: httpx.Client):
    """A conversation, to which only its process writes; a response in progress; and what no process has."""
    conversation = (await post(first, "/v1/conversations"))["id"]
    running = await post(first, RESPONSES, input=STORY, background=True, max_output_tokens=1500, ignore_eos=True)
    async with connected_at(service, 1) as socket:
        for fields, code in (
            ({"conversation": conversation}, "conversation_elsewhere"),
            ({"conversation": "conv_unknown"}, "conversation_not_found"),
            ({"previous_response_id": running["id"]}, "response_in_progress"),
            ({"previous_response_id": "resp_unknown"}, "previous_response_not_found"),
        ):
            await socket.send(input=COUNT, **fields)
            [error] = await socket.until(*ENDS)
            assert error["error"]["code"] == code, fields
    await asyncio.to_thread(lambda: first.post(f"{RESPONSES}/{running['id']}/cancel"))
    unasked = await asyncio.to_thread(lambda: first.get(f"/internal/chains/{running['id']}"))
    assert unasked.status_code == 404  # questions are for processes only
