"""WebSocket of /v1/responses on a real server: the same text on every way, and clients that behave badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.admission.body_budget import MEMORY_PER_BYTE
from app.cli.serve import MAX_FRAME_BYTES
from tests.conftest import Server
from tests.e2e.test_connection_limits import metric
from tests.limits import HANG_SECONDS

EVENT = TypeAdapter(ResponsesServerEvent)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
STORY = "Tell me a story about a fox."
COUNT = "Count from 1 to 8."


class Socket:
    """A WebSocket, and its events."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str = "response.create", **fields) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, *kinds: str) -> list[dict]:
        """Return the next events up to the first one of these types."""
        found: list[dict] = []
        async with asyncio.timeout(HANG_SECONDS):
            while not found or found[-1]["type"] not in kinds:
                found.append(json.loads(await self.socket.recv()))
        return found

    async def create(self, **fields) -> dict:
        """Return the response of a request."""
        await self.send(**fields)
        return (await self.until(*ENDS))[-1]["response"]


@asynccontextmanager
async def connected(server: Server, **options) -> AsyncIterator[Socket]:
    async with connect(server.url.replace("http", "ws") + "/v1/responses", max_size=None, **options) as socket:
        yield Socket(socket)


def text_of(response: dict) -> str:
    """Return the text of a response."""
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def over_http(server: Server, **fields) -> dict:
    return httpx.post(f"{server.url}/v1/responses", json=fields, timeout=HANG_SECONDS).json()


async def test_the_text_is_the_same_on_every_way(server: Server):
    """A request gives the same text over HTTP, alone on a WebSocket, and in a lane beside others."""
    requests = [{"input": text, "temperature": 0.8, "seed": 7, "max_output_tokens": 60} for text in (STORY, COUNT)]
    wanted = [text_of(await asyncio.to_thread(lambda body=body: over_http(server, **body))) for body in requests]
    async with connected(server) as socket:
        assert [text_of(await socket.create(**body, store=False)) for body in requests] == wanted
        for number in range(8):
            await socket.send(**requests[number % 2], stream_id=str(number), store=number % 3 == 0)
        texts: dict[str, str] = {}
        while len(texts) < 8:
            ended = (await socket.until(*ENDS))[-1]
            texts[ended["stream_id"]] = text_of(ended["response"])
        assert [texts[str(number)] for number in range(8)] == wanted * 4


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_steered_response_has_the_text_of_its_items(slow_server: Server, is_stored: bool):
    """Its continuation equals that of the cut answer and the new input sent by hand."""
    settings = {"temperature": 0.8, "seed": 7, "instructions": "Be brief.", "max_output_tokens": 40}
    async with connected(slow_server) as socket:
        await socket.send(input=STORY, store=is_stored, **settings)
        given = (await socket.until("response.output_text.delta"))[0]["response"]["id"]
        for _ in range(5):
            await socket.until("response.output_text.delta")
        await socket.send("response.steer", previous_response_id=given, input=COUNT)
        cut = (await socket.until(*ENDS))[-1]["response"]
        assert cut["incomplete_details"] == {"reason": "steered"} and text_of(cut)
        found = await socket.until(*ENDS)
        continued = found[-1]["response"]
        deltas = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert continued["previous_response_id"] == given and text_of(continued) == deltas
    user = [{"role": "user", "content": text} for text in (STORY, COUNT)]
    items = [user[0], *cut["output"], user[1]]
    by_hand = await asyncio.to_thread(lambda: over_http(slow_server, input=items, **settings))
    assert text_of(by_hand) == text_of(continued)
    assert by_hand["usage"]["input_tokens"] == continued["usage"]["input_tokens"]


async def test_openai_s_client_continues_unstored_responses(server: Server):
    """Three turns are connected by previous_response_id, and all events are valid."""
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        client.responses.connect() as connection,
    ):
        previous, tokens = None, []
        for text in ("Hello!", COUNT, "Thank you."):
            fields = {} if previous is None else {"previous_response_id": previous}
            await connection.response.create(
                model="carousel-demo", input=text, store=False, max_output_tokens=12, stream_id="main", **fields
            )
            async for event in connection:
                EVENT.validate_python(event.to_dict(), strict=True)
                assert event.stream_id == "main"
                if event.type in ENDS:
                    previous = event.response.id
                    tokens.append(event.response.usage.input_tokens)
                    break
    assert tokens == sorted(tokens) and len(set(tokens)) == 3


async def test_requests_of_a_client_that_leaves_are_ended(slow_server: Server):
    """Those in all lanes end, and so do those that wait."""
    async with connected(slow_server) as socket:
        for number in range(6):
            await socket.send(input=STORY, max_output_tokens=400, ignore_eos=True, stream_id=str(number % 3))
        await socket.until("response.output_text.delta")
        await socket.socket.close()
    async with asyncio.timeout(HANG_SECONDS):
        while await asyncio.to_thread(running, slow_server):
            await asyncio.sleep(0.05)


def running(server: Server) -> float:
    """Return the number of running and waiting requests."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


async def test_frames_that_wait_in_a_lane_keep_their_memory(slow_server: Server):
    """Memory is reserved for a large frame until its request is queued, and returned when its client leaves."""
    large = "a b " * 50_000
    async with connected(slow_server) as socket:
        await socket.send(input=STORY, max_output_tokens=500, ignore_eos=True)
        await socket.until("response.output_text.delta")
        await socket.send(input=large)
        await socket.send(input="Hi", stream_id="other", max_output_tokens=1)
        while (await socket.until(*ENDS))[-1].get("stream_id") != "other":
            pass
        reserved = await asyncio.to_thread(metric, slow_server, "body_memory_bytes")
        assert reserved >= MEMORY_PER_BYTE * len(large)
    async with asyncio.timeout(HANG_SECONDS):
        while await asyncio.to_thread(metric, slow_server, "body_memory_bytes"):
            await asyncio.sleep(0.05)


async def test_the_largest_frame_is_refused_like_a_body(server: Server):
    """Its error is that of the same body, and a frame with one byte more closes the connection (1009)."""
    async with connected(server) as socket:
        frame = {"type": "response.create", "input": ""}
        frame["input"] = "a" * (MAX_FRAME_BYTES - len(json.dumps(frame)))
        await socket.socket.send(json.dumps(frame))
        refused = (await socket.until("error"))[-1]
        answer = await asyncio.to_thread(lambda: over_http(server, input=frame["input"]))
        assert refused["error"] == answer["error"]
        assert (await socket.create(input="Hi", max_output_tokens=1))["status"] == "incomplete"
        frame["input"] += "a"
        await socket.socket.send(json.dumps(frame))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.until("error")
        assert closed.value.rcvd.code == 1009


async def test_binary_frames_close_the_connection(server: Server):
    """The close code is 1003."""
    async with connected(server) as socket:
        await socket.socket.send(b"{}")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.until("error")
        assert closed.value.rcvd.code == 1003
