"""Events of a realtime response over a WebSocket."""

from __future__ import annotations

import asyncio
import json
import weakref
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.uri import parse_uri

from app.admission.cell_rate import CellRate
from app.admission.event_pacer import EventPacer
from app.admission.kept_sessions import KeptSessions
from app.admission.tenants import tenant_of_key
from app.http.websocket import WebSocketProtocol
from app.protocols.realtime_items import ContentPart, MessageFields
from app.protocols.realtime_output import MAX_OUTPUT_ITEMS, ResponseOutput
from app.routes.frame_pace import MAX_BURST
from app.routes.realtime_prompt import TURN_COST
from app.routes.realtime_session import MAX_RESPONSES, Session
from app.streams.stream_log import ChoiceFinished, Delta, Failure, StreamLog, ToolCallPiece, Usage
from app.streams.tail import DIRECT_WRITE, stream_chunks
from engine.types import Phase, StatusEvent
from tests.fakes import FakeService
from tests.limits import HANG_SECONDS
from tests.profiles import examples


class Socket:
    """Output of a session, which accepts direct writes while `has_room` is set."""

    def __init__(self) -> None:
        self.received: list[dict] = []
        self.has_room = True

    def write(self, messages: list[bytes]) -> bool:
        if self.has_room:
            self.received += map(json.loads, messages)
        return self.has_room

    async def send(self, message: bytes) -> None:
        while not self.has_room:
            await asyncio.sleep(0)
        self.received.append(json.loads(message))


@given(st.lists(st.one_of(st.text(max_size=3), st.sampled_from([0, 1, 2, 3])), max_size=40))
@settings(max_examples=examples(200))
def test_every_delta_is_sent_once_in_order_across_stalls(script):
    """The socket stalls and drains at any time, event ids are unique, and the response records its text."""

    async def run() -> None:
        socket, log = Socket(), StreamLog("s", "e", "")
        session = Session(SimpleNamespace(), SimpleNamespace(), socket.send, socket.write)
        output = ResponseOutput("resp_1", None, session._event_id)

        async def send_events() -> None:
            async for messages in stream_chunks(log, 0, output, session):
                for message in messages:
                    await session.send(message)

        sending = asyncio.create_task(send_events())
        for action in script:
            match action:
                case 0 | 1:
                    socket.has_room = bool(action)
                case 2:
                    await asyncio.sleep(0.001)
                case 3:
                    log.status = StatusEvent("s", 0, Phase.DECODE, 0)
                    log.notify()
                case str():
                    log.append(Delta(0, action, 1))
                    log.notify()
        socket.has_room = True
        log.append(ChoiceFinished(0, "length"))
        log.append(Usage(1, 1, 0))
        log.notify()
        await asyncio.wait_for(sending, HANG_SECONDS)
        deltas = [event["delta"] for event in socket.received if event["type"] == "response.output_text.delta"]
        assert deltas == [action for action in script if isinstance(action, str) and action]
        assert output.items[0].text == "".join(deltas) and output.finish == "length"
        assert len({event["event_id"] for event in socket.received}) == len(socket.received)

    asyncio.run(run())


def test_a_delta_names_its_response_and_item():
    """It has the fields of every other event, and any text is encoded as JSON."""
    log = StreamLog("s", "e", "")
    log.append(Delta(0, 'a "quote"\n\u2028\x00\U0001f600', 1))
    reader = SimpleNamespace(write=lambda messages: False)

    async def first() -> list[bytes]:
        return await anext(stream_chunks(log, 0, ResponseOutput("resp_1", None, lambda: "event_7"), reader))

    added, _, message = map(json.loads, asyncio.run(first()))
    assert message == {
        "type": "response.output_text.delta",
        "event_id": "event_7",
        "response_id": "resp_1",
        "item_id": added["item"]["id"],
        "output_index": 0,
        "content_index": 0,
        "delta": 'a "quote"\n\u2028\x00\U0001f600',
    }


class Transport(asyncio.Transport):
    """Transport with a settable size of its write buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.buffered = 0
        self.is_closed = False

    def write(self, data) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.fixture
async def open_connection():
    """Yield the direct write of an accepted connection, server protocol, transport, and client protocol."""
    scopes = asyncio.Queue()
    is_over = asyncio.Event()

    async def application(scope, receive, send) -> None:
        assert not scope["extensions"][DIRECT_WRITE]["write"]([b"too early"])
        await send({"type": "websocket.accept"})
        scopes.put_nowait(scope)
        await is_over.wait()

    config = Config(application, log_config=None, lifespan="off", ws_per_message_deflate=False)
    config.load()
    server, transport = WebSocketProtocol(config, ServerState(), {}), Transport()
    server.connection_made(transport)
    client = ClientProtocol(parse_uri("ws://localhost/"))
    client.send_request(client.connect())
    server.data_received(b"".join(client.data_to_send()))
    scope = await asyncio.wait_for(scopes.get(), HANG_SECONDS)
    client.receive_data(transport.sent)
    client.events_received()
    transport.sent = b""
    yield scope["extensions"][DIRECT_WRITE]["write"], server, transport, client
    is_over.set()
    server.stop_keepalive()
    await asyncio.gather(*server.tasks)


async def test_messages_are_written_before_the_call_returns(open_connection):
    """Each is a text message of its own, for any length."""
    write, _, transport, client = open_connection
    texts = [b"x" * size for size in (1, 125, 126, 65_535, 65_536)]
    assert write(texts)
    client.receive_data(transport.sent)
    frames = client.events_received()
    assert [(frame.opcode, bytes(frame.data)) for frame in frames] == [(Opcode.TEXT, text) for text in texts]


@pytest.mark.parametrize("why", ["full", "gone", "closing"])
async def test_nothing_is_written_to_a_full_or_closed_transport(open_connection, why: str):
    """The write returns False, so that the caller sends the messages in the normal way."""
    write, server, transport, _ = open_connection
    match why:
        case "full":
            transport.buffered = 1
        case "gone":
            transport.is_closed = True
        case "closing":
            server.conn.send_close(1000)
            server.conn.data_to_send()
    assert not write([b"x"])
    assert transport.sent == b""


async def test_a_socket_that_floods_is_limited_by_its_own_rate(monkeypatch: pytest.MonkeyPatch):
    """Events and the bytes that they send and fetch are counted, and another socket is served at once."""
    monkeypatch.setattr("app.routes.frame_pace.MAX_EVENTS_PER_SECOND", 0.001)
    service = SimpleNamespace(pacer=EventPacer())

    def session() -> tuple[Session, Socket]:
        socket = Socket()
        return Session(service, SimpleNamespace(), socket.send, socket.write), socket

    (small, small_socket), (large, large_socket), (other, other_socket) = session(), session(), session()

    async def flood(flooding: Session, text: str) -> None:
        while True:
            await flooding.handle_frame(text)

    floods = [
        asyncio.ensure_future(flood(small, '{"type": "x"}')),
        asyncio.ensure_future(flood(large, json.dumps({"type": "x", "event_id": "a" * 16_000}))),
    ]
    await asyncio.sleep(0.05)
    await asyncio.wait_for(other.handle_frame('{"type": "x"}'), HANG_SECONDS)
    for task in floods:
        assert not task.done()
        task.cancel()
    assert len(small_socket.received) <= MAX_BURST
    assert len(large_socket.received) <= MAX_BURST / 2 + 1
    assert len(other_socket.received) == 1


async def test_a_closed_session_keeps_no_conversation():
    """Its items are freed at once, even while something such as a traceback refers to the session."""
    socket = Socket()
    session = Session(SimpleNamespace(), SimpleNamespace(), socket.send, socket.write)
    fields = MessageFields(type="message", role="user", content=[ContentPart(type="input_text", text="a" * 1000)])
    await session._create_item(fields, None)
    items = weakref.ref(session.items)
    await session.detach()
    session.end()
    assert items() is None


@pytest.fixture
def client():
    """Return a function that sends events to a session, and returns those that it has sent since."""
    socket = Socket()
    session = Session(FakeService(), tenant_of_key("anna"), socket.send, socket.write)

    async def send(*events: dict) -> list[dict]:
        before = len(socket.received)
        for event in events:
            await session.handle_frame(json.dumps(event))
        return socket.received[before:]

    send.session = session
    return send


USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}


async def test_a_wrong_field_of_an_update_is_an_error_after_the_update(client):
    """The other fields are in force, and the error has the id of the event."""
    session = {"instructions": "Be brief.", "voice": "alloy", "model": "gpt-nine", "bananas": 3}
    updated, error = await client({"type": "session.update", "event_id": "e1", "session": session})
    assert updated["type"] == "session.updated" and updated["session"]["instructions"] == "Be brief."
    assert (error["error"]["param"], error["error"]["code"]) == ("session.model", "model_not_found")
    assert error["error"]["event_id"] == "e1"
    [refused] = await client({"type": "session.update", "session": {"bananas": 3}})
    assert refused["error"]["param"] == "session.bananas"


async def test_clearing_a_buffer_of_audio_is_confirmed(client):
    """Clients do so at each interruption, and some end their session at an error. The buffers are always empty."""
    for kind in ("input_audio_buffer", "output_audio_buffer"):
        [event] = await client({"type": f"{kind}.clear"})
        assert event["type"] == f"{kind}.cleared"
    [error] = await client({"type": "input_audio_buffer.append", "audio": "AA=="})
    assert error["error"]["code"] == "unsupported_event"


async def test_a_truncated_answer_keeps_its_text(client):
    """Only the client knows how much text was spoken by then."""
    await client({"type": "conversation.item.create", "item": USER | {"id": "a1", "role": "assistant"}})
    truncate = {"type": "conversation.item.truncate", "item_id": "a1", "content_index": 0, "audio_end_ms": 40}
    [event] = await client(truncate)
    assert {name: event[name] for name in ("type", "item_id", "content_index", "audio_end_ms")} == {
        "type": "conversation.item.truncated",
        "item_id": "a1",
        "content_index": 0,
        "audio_end_ms": 40,
    }
    [event] = await client({"type": "conversation.item.retrieve", "item_id": "a1"})
    assert event["item"]["content"] == [{"type": "output_text", "text": "Hello"}]
    await client({"type": "conversation.item.create", "item": USER | {"id": "u1"}})
    [error] = await client(truncate | {"item_id": "u1"})
    assert error["error"]["param"] == "item_id"


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "conversation.item.retrieve", "item_id": "x"}, "item_retrieve_invalid_item_id"),
        ({"type": "conversation.item.delete", "item_id": "x"}, "item_delete_invalid_item_id"),
        (
            {"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 0},
            "item_truncate_invalid_item_id",
        ),
        (
            {"type": "conversation.item.create", "item": USER, "previous_item_id": "x"},
            "item_create_invalid_item_id",
        ),
        ({"type": "response.cancel"}, "response_cancel_not_active"),
        (
            {"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "x"}]}},
            "item_reference_invalid_item_id",
        ),
    ],
)
async def test_errors_have_the_codes_on_which_clients_depend(client, event: dict, code: str):
    """Pipecat ends a session at an error with another code than it knows."""
    [error] = await client(event)
    assert error["error"]["code"] == code
    if code == "response_cancel_not_active":
        assert error["error"]["message"].startswith("Cancellation failed")  # LiveKit ignores it by this text


async def test_a_response_out_of_band_reads_references_and_writes_nothing(client):
    """Its events have the metadata of its request, by which a client knows them."""
    await client({"type": "conversation.item.create", "item": USER | {"id": "u1"}})
    reference = {"type": "item_reference", "id": "u1"}
    response = {"conversation": "none", "input": [reference, USER], "metadata": {"topic": "t"}, "instructions": "Be"}
    [created] = await client({"type": "response.create", "response": response})
    assert created["response"]["metadata"] == {"topic": "t"}
    service = client.session.service
    assert [turn["content"] for turn in service.requests[0].prompt.turns] == ["Be", "Hello", "Hello"]
    generation = service.generations[created["response"]["id"]]
    generation.write(Delta(0, "Hm.", 1), ChoiceFinished(0, "stop"), Usage(1, 1, 0))
    while client.session._responses:
        await asyncio.sleep(0)
    assert [item.id for item in client.session.items] == ["u1"]


async def test_a_ninth_response_is_refused(client):
    """The number of responses at once is bounded, in the conversation or out of band."""
    response = {"type": "response.create", "response": {"conversation": "none", "input": [USER]}}
    created = await client(*[response] * MAX_RESPONSES)
    assert {event["type"] for event in created} == {"response.created"}
    [error] = await client(response)
    assert error["error"]["code"] == "too_many_responses"
    client.session.end()


async def test_an_answer_with_too_many_calls_fails(client):
    """The session continues, and the conversation has as many of the calls as an answer may have."""
    await client({"type": "conversation.item.create", "item": USER})
    [created] = await client({"type": "response.create"})
    generation = client.session.service.generations[created["response"]["id"]]
    many = (
        Delta(0, "", 1, calls=(ToolCallPiece(number, "{}", f"c{number}", "f"),)) for number in range(MAX_OUTPUT_ITEMS)
    )
    generation.write(*many)
    generation.write(Delta(0, "", 1, calls=(ToolCallPiece(MAX_OUTPUT_ITEMS, "{}", "last", "f"),)))
    async with asyncio.timeout(HANG_SECONDS):
        while client.session._responses:
            await asyncio.sleep(0)
    assert isinstance(generation.log.records[-1], Failure) and generation.log.records[-1].code == "too_many_items"
    assert len(client.session.items) == MAX_OUTPUT_ITEMS + 1


async def test_a_session_that_is_taken_up_sends_its_items_and_responses_again(client):
    """The events of a running response come from its first one on."""
    session = client.session
    await client(
        {"type": "session.update", "session": {"instructions": "Be brief."}},
        {"type": "conversation.item.create", "item": USER | {"id": "u1"}},
    )
    [created] = await client({"type": "response.create", "response": {"metadata": {"topic": "t"}}})
    generation = session.service.generations[created["response"]["id"]]
    generation.write(Delta(0, "One ", 1))
    while len(session.items) < 2:  # the first connection has got the beginning
        await asyncio.sleep(0)
    await session.detach()
    generation.write(Delta(0, "two", 1))
    again = Socket()
    session.attach(session.tenant, again.send, again.write, "")
    await session.open()
    generation.write(ChoiceFinished(0, "stop"), Usage(1, 1, 0))
    while session._responses:
        await asyncio.sleep(0)
    kinds = [event["type"] for event in again.received]
    assert kinds[:4] == ["session.created", "conversation.item.added", "conversation.item.done", "response.created"]
    assert again.received[0]["session"]["id"] == session.id
    assert again.received[0]["session"]["instructions"] == "Be brief."
    assert again.received[3]["response"] == created["response"]
    deltas = [event["delta"] for event in again.received if event["type"] == "response.output_text.delta"]
    assert deltas == ["One ", "two"] and kinds[-1] == "response.done"
    assert [item.text for item in session.items] == ["Hello", "One two"]
    assert session.size > 2 * len("One two")


async def test_a_restored_session_outlives_a_connection_that_is_lost_at_once(client):
    """Its client has named it, though no connection of this process has announced it."""
    session, sessions = client.session, KeptSessions()
    session.service.sessions, session.service.draining = sessions, False
    session.attach(session.tenant, session.send, session.write, "")
    sessions.connect(session)
    session.release(is_lost=True)
    assert len(sessions) == 1
    assert await sessions.take(session.id, session.owner) is session


async def test_a_long_conversation_is_read_in_a_thread(client):
    """Its calls are decoded, during which other requests go on."""
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    for number in range(3):
        client.session._pace.rate = CellRate(1e9, 1e9)
        await client(*({"type": "conversation.item.create", "item": call | {"call_id": "c"}} for _ in range(340)))
        await client({"type": "conversation.item.create", "item": USER | {"id": f"u{number}"}})
    [created] = await client({"type": "response.create"})
    assert created["type"] == "response.created"
    service = client.session.service
    assert service.prompts.body_queue.sizes == [1023 * TURN_COST + 1020 * len("fc{}")]
    assert len(service.requests[0].prompt.turns) == 6
    client.session.end()
