"""The realtime WebSocket with OpenAI's client, and with a raw client that behaves worse."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import httpx
import openai
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.e2e.test_resume import http, wait_until_idle  # noqa: F401  (a fixture)
from tests.limits import HANG_SECONDS

LONG = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story about a fox."}]}


class Raw:
    """A WebSocket and its received events."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.seen: list[dict] = []

    async def send(self, **event) -> None:
        await self.socket.send(json.dumps(event))

    async def until(self, kind: str) -> dict:
        """Return the next event of `kind`; earlier events are in `seen`."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                event = json.loads(await self.socket.recv())
                self.seen.append(event)
                if event["type"] == kind:
                    return event

    def kinds(self) -> list[str]:
        """Return the types in order, without live status, and with each run of deltas as one."""
        kinds = [event["type"] for event in self.seen if event["type"] != "carousel.status"]
        return [k for i, k in enumerate(kinds) if i == 0 or not (k == kinds[i - 1] == "response.output_text.delta")]


@pytest.fixture
async def raw(slow_server):
    url = slow_server.url.replace("http", "ws") + "/v1/realtime"
    async with connect(url) as socket:
        client = Raw(socket)
        await client.until("session.created")
        yield client


async def test_the_timeline_of_a_response_is_found_by_its_id(raw, slow_server):
    """This holds while the response can be read and afterwards."""
    item = {**LONG, "content": [{"type": "input_text", "text": "Hello!"}]}
    await raw.send(type="conversation.item.create", item=item)
    await raw.send(type="response.create")
    done = await raw.until("response.done")
    url = f"{slow_server.url}/v1/requests/{done['response']['id']}"
    timeline = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))
    assert (timeline["class"], timeline["state"]) == ("interactive", "ended")


async def test_openai_s_realtime_client_holds_a_conversation(slow_server):
    """The second of two turns includes the first."""
    client = openai.AsyncOpenAI(base_url=f"{slow_server.url}/v1", api_key="none")
    async with client.realtime.connect(model=(await client.models.list()).data[0].id) as connection:
        await connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 20}
        )
        input_tokens = []
        for text in ("Hello!", "Count from 1 to 5."):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await connection.conversation.item.create(item=item)
            await connection.response.create()
            deltas = ""
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.output_text.delta":
                    deltas += event.delta
                if event.type == "response.output_text.done":
                    assert event.text == deltas
                if event.type == "response.done":
                    assert event.response.status in ("completed", "incomplete")
                    input_tokens.append(event.response.usage.input_tokens)
                    break
        assert input_tokens[1] > input_tokens[0]
    await client.close()


async def test_openai_s_realtime_client_interrupts(slow_server):
    """Barge-in cancels a response after a few deltas and starts another one."""
    client = openai.AsyncOpenAI(base_url=f"{slow_server.url}/v1", api_key="none")
    async with client.realtime.connect(model="carousel-demo") as connection:
        await connection.conversation.item.create(item=LONG)
        await connection.response.create()
        deltas = 0
        async for event in connection:
            if event.type == "response.output_text.delta":
                deltas += 1
                if deltas == 3:
                    await connection.response.cancel()
            if event.type == "response.done":
                assert event.response.status == "cancelled"
                assert event.response.status_details.reason == "client_cancelled"
                break
        await connection.response.create(response={"max_output_tokens": 4})
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.done":
                break
    await client.close()


async def test_a_response_comes_in_the_protocol_s_order(raw):
    """All events from response.created to response.done come once."""
    await raw.send(type="conversation.item.create", item=LONG)
    await raw.send(type="response.create", response={"max_output_tokens": 8, "metadata": {"topic": "foxes"}})
    done = await raw.until("response.done")
    assert raw.kinds() == [
        "session.created",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert len({event["event_id"] for event in raw.seen}) == len(raw.seen)
    response = done["response"]
    assert response["metadata"] == {"topic": "foxes"}
    assert response["usage"]["output_tokens"] <= 8
    assert response["output"][0]["content"][0]["type"] == "output_text"


async def test_events_sent_together_are_handled_in_order(raw):
    """The three frames arrive in one segment. The answer has its place before a message that was sent later."""
    events = [
        {"type": "conversation.item.create", "item": LONG | {"id": "first"}},
        {"type": "response.create", "response": {"max_output_tokens": 2}},
        {"type": "conversation.item.create", "item": LONG | {"id": "second"}},
    ]
    frames = []
    for event in events:
        body = json.dumps(event).encode()
        frames.append(b"\x81" + (0x80 | 126).to_bytes(1, "big") + len(body).to_bytes(2, "big") + bytes(4) + body)
    raw.socket.transport.write(b"".join(frames))
    await raw.until("response.done")
    added = [e for e in raw.seen if e["type"] in ("response.created", "conversation.item.added")]
    assert added[1]["type"] == "response.created"
    answer = added[3]["item"]["id"]
    assert [(e["item"]["id"], e["previous_item_id"]) for e in (added[0], *added[2:])] == [
        ("first", None),
        ("second", "first"),
        (answer, "first"),
    ]


async def test_an_answer_deleted_during_generation_is_not_reported_as_done(raw):
    """A client that stores completed items would otherwise keep it."""
    await raw.send(type="conversation.item.create", item=LONG)
    await raw.until("conversation.item.done")
    await raw.send(type="response.create", response={"max_output_tokens": 40})
    answer = (await raw.until("conversation.item.added"))["item"]["id"]
    await raw.send(type="conversation.item.delete", item_id=answer)
    await raw.until("conversation.item.deleted")
    position = len(raw.seen)
    await raw.until("response.done")
    assert "conversation.item.done" not in [event["type"] for event in raw.seen[position:]]


async def test_an_interruption_frees_the_slot_at_once(raw, http):  # noqa: F811
    """Cancellation ends in response.done, and no computation continues."""
    await raw.send(type="conversation.item.create", item=LONG)
    await raw.send(type="response.create")
    await raw.until("response.output_text.delta")
    await raw.send(type="response.cancel")
    done = await raw.until("response.done")
    assert done["response"]["status"] == "cancelled"
    await asyncio.to_thread(wait_until_idle, http, 3.0)


async def test_a_response_stopped_over_http_is_cancelled_and_is_no_stream(raw, slow_server):
    """The owner cancels it over HTTP, and requests to follow it are refused."""
    await raw.send(type="conversation.item.create", item=LONG)
    await raw.send(type="response.create")
    response = (await raw.until("response.created"))["response"]["id"]
    url = f"{slow_server.url}/v1/streams/{response.removeprefix('resp_')}"
    await raw.until("response.output_text.delta")
    async with httpx.AsyncClient() as client:
        followed = await client.get(url)
        assert (followed.status_code, followed.json()["error"]["code"]) == (404, "stream_not_found")
        assert (await client.delete(url)).status_code == 204
        done = (await raw.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["type"]) == ("cancelled", "cancelled")
        assert (await client.get(url)).status_code == 404


async def test_one_response_per_conversation_and_others_out_of_band(raw):
    """A second one in the conversation is refused, and an out-of-band one is accepted."""
    await raw.send(type="conversation.item.create", item=LONG)
    await raw.send(type="response.create")
    await raw.until("response.created")
    await raw.send(type="response.create", event_id="second")
    error = await raw.until("error")
    assert error["error"]["code"] == "conversation_already_has_active_response"
    assert error["error"]["event_id"] == "second"
    await raw.send(type="response.create", response={"conversation": "none", "input": [LONG], "max_output_tokens": 2})
    done = await raw.until("response.done")
    assert done["response"]["status"] == "incomplete"
    await raw.send(type="response.cancel")
    assert (await raw.until("response.done"))["response"]["status"] == "cancelled"


async def test_a_client_that_disconnects_frees_its_slot(slow_server, http):  # noqa: F811
    """The connection closes in the middle of a response."""
    async with connect(slow_server.url.replace("http", "ws") + "/v1/realtime") as socket:
        client = Raw(socket)
        await client.send(type="conversation.item.create", item=LONG)
        await client.send(type="response.create")
        await client.until("response.output_text.delta")
    await asyncio.to_thread(wait_until_idle, http, 5.0)


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_value", None),
        ('{"event_id": "e1"}', "missing", "type"),
        ('{"type": "input_audio_buffer.append", "audio": ""}', "unsupported_event", "type"),
        ('{"type": "session.update", "session": {"bananas": 1}}', "unsupported_parameter", "session.bananas"),
        (
            '{"type": "session.update", "session": {"output_modalities": ["video"]}}',
            "invalid_value",
            "session.output_modalities.0",
        ),
        ('{"type": "response.create"}', "empty_conversation", None),
        ('{"type": "response.cancel"}', "response_cancel_not_active", "response_id"),
        ('{"type": "conversation.item.delete", "item_id": "x"}', "item_delete_invalid_item_id", "item_id"),
        (
            json.dumps({"type": "conversation.item.create", "item": LONG, "previous_item_id": "x"}),
            "item_create_invalid_item_id",
            "previous_item_id",
        ),
        (
            '{"type": "response.create", "response": {"max_output_tokens": 0}}',
            "invalid_value",
            "response.max_output_tokens",
        ),
        (
            json.dumps({"type": "response.create", "response": {"input": [LONG], "max_output_tokens": 1 << 30}}),
            "context_length_exceeded",
            "response.max_output_tokens",
        ),
    ],
)
async def test_an_invalid_event_gets_an_error_and_the_session_continues(raw, frame: str, code: str, param: str | None):
    """An `error` event has the reason, and the next event is handled."""
    await raw.socket.send(frame)
    error = (await raw.until("error"))["error"]
    assert error["code"] == code
    assert param is None or error["param"] == param
    await raw.send(type="session.update", session={"instructions": "Be brief."})
    assert (await raw.until("session.updated"))["session"]["instructions"] == "Be brief."


async def test_items_can_be_read_and_deleted(raw):
    """A created item is found by its id until it is deleted."""
    await raw.send(type="conversation.item.create", item=LONG | {"id": "mine"})
    await raw.until("conversation.item.done")
    await raw.send(type="conversation.item.retrieve", item_id="mine")
    assert (await raw.until("conversation.item.retrieved"))["item"]["content"][0]["text"]
    await raw.send(type="conversation.item.delete", item_id="mine")
    await raw.until("conversation.item.deleted")
    await raw.send(type="conversation.item.retrieve", item_id="mine")
    assert (await raw.until("error"))["error"]["code"] == "item_retrieve_invalid_item_id"


@pytest.mark.parametrize(("frame", "code"), [(b"\x00\x01", 1003), ('{"type": "' + "x" * (1 << 20) + '"}', 1009)])
async def test_a_frame_of_the_wrong_kind_closes_with_its_code(raw, frame, code: int):
    """The code is 1003 for binary frames and 1009 for oversized ones."""
    with pytest.raises(ConnectionClosed) as closed:
        await raw.socket.send(frame)
        await raw.until("never")
    assert closed.value.rcvd.code == code


async def test_a_client_that_sends_too_much_still_receives_the_close_code(slow_server):
    """Most of the frame arrives after the server has refused it, and a reset would discard the reason."""
    size = 16 << 20
    reader, writer = await asyncio.open_connection(*slow_server.url.removeprefix("http://").split(":"))
    try:
        writer.write(
            b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"\x81\xff" + size.to_bytes(8, "big") + bytes(4 + size))  # one masked text frame
        await writer.drain()
        writer.write_eof()
        frames = await asyncio.wait_for(reader.read(), HANG_SECONDS)
    finally:
        writer.close()
    close_frame = frames.index(b"\x88")  # a close frame, then its length, then its code
    assert int.from_bytes(frames[close_frame + 2 : close_frame + 4], "big") == 1009


async def test_a_foreign_origin_is_refused_before_the_upgrade(slow_server):
    """A page of another site cannot talk to a server on this machine."""
    url = slow_server.url.replace("http", "ws") + "/v1/realtime"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, origin="https://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403
    assert "elsewhere.example" in json.loads(refused.value.response.body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "code"), [("/v1/realtime?model=gpt-nine", "model_not_found"), ("/v1/nothing", "not_found")]
)
async def test_an_unknown_model_or_path_is_answered_in_place_of_the_upgrade(slow_server, path: str, code: str):
    """The JSON is the same as over HTTP."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(slow_server.url.replace("http", "ws") + path):
            pass
    response = refused.value.response
    assert response.status_code == 404 and json.loads(response.body)["error"]["code"] == code


async def test_null_resets_a_session_setting(raw):
    """The session event has the current settings, and a response has those that were used for it."""
    await raw.send(type="session.update", session={"seed": 3, "temperature": 0.5, "max_output_tokens": 4})
    session = (await raw.until("session.updated"))["session"]
    assert (session["seed"], session["temperature"], session["max_output_tokens"]) == (3, 0.5, 4)
    await raw.send(type="session.update", session={"seed": None})
    session = (await raw.until("session.updated"))["session"]
    assert (session["seed"], session["temperature"]) == (None, 0.5)
    await raw.send(type="conversation.item.create", item=LONG)
    await raw.send(type="response.create")
    done = (await raw.until("response.done"))["response"]
    assert (done["status"], done["max_output_tokens"]) == ("incomplete", 4)
    await raw.send(type="response.create", response={"max_output_tokens": "inf", "conversation": "none"})
    assert (await raw.until("response.created"))["response"]["max_output_tokens"] == "inf"
    await raw.send(type="session.update", session={"max_output_tokens": None})
    assert (await raw.until("session.updated"))["session"]["max_output_tokens"] == "inf"


async def test_frames_in_the_packet_of_the_handshake_are_not_lost(slow_server):
    """A client need not wait for the answer to its upgrade before it sends."""
    host, port = slow_server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    event = b'{"type":"session.update","session":{"seed":7}}'
    frame = b"\x81" + bytes([0x80 | len(event)]) + bytes(4) + event
    head = (
        f"GET /v1/realtime HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    writer.write(head.encode() + frame)
    try:
        answer = await asyncio.wait_for(reader.readuntil(b'"seed":7'), HANG_SECONDS)
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 101") and b"session.updated" in answer
