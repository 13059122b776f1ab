"""Floods over a WebSocket: bounded work per turn of the event loop, bounded memory, and a close code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.uri import parse_uri

from app.admission import body_budget
from app.admission.body_budget import FREE_BYTES, MEMORY_PER_BYTE, BodyBudget
from app.http.message_memory import MESSAGE_MEMORY
from app.http.websocket import (
    CLOSE_CODE_EXTENSION,
    FLOOD_CLOSE_CODE,
    MAX_CONTROL_FRAMES_PER_SECOND,
    MAX_FRAGMENTS,
    MAX_PARSE_BYTES,
    NO_MEMORY_CLOSE_CODE,
    WebSocketProtocol,
)
from tests.app.routes.test_realtime_session import Transport
from tests.limits import HANG_SECONDS

READ_BYTES = 256 << 10  # that a transport delivers in one call
READS_PER_TURN = 32
BUDGET_BYTES = MEMORY_PER_BYTE << 20  # for one message of the maximum size
MAX_FRAMES_PER_SLICE = MAX_PARSE_BYTES // 6 + 1


class PausedTransport(Transport):
    """Transport that records whether reading is paused."""

    is_paused = False
    on_resume: Callable[[], object] | None = None  # called before anything that is scheduled after it

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        if self.is_paused and self.on_resume is not None:
            asyncio.get_running_loop().call_soon(self.on_resume)
        self.is_paused = False

    def write_eof(self) -> None:
        pass


class Peer:
    """A server's connection, whose application receives messages when the test allows it, and the client's side."""

    def __init__(self) -> None:
        self.transport = PausedTransport()
        config = Config(self._application, interface="asgi3", log_config=None, lifespan="off", ws_max_size=1 << 20)
        config.load()
        self.server = WebSocketProtocol(config, ServerState(), {})
        self.server.connection_made(self.transport)
        self.client = ClientProtocol(parse_uri("ws://localhost/"), max_size=None)
        self.messages: asyncio.Queue[dict] = asyncio.Queue()
        self.may_accept, self.may_receive = asyncio.Event(), asyncio.Semaphore(0)
        self.budget = BodyBudget(BUDGET_BYTES, BUDGET_BYTES)

    async def _application(self, scope, receive, send) -> None:
        scope["extensions"][MESSAGE_MEMORY] = {"memory": lambda: self.budget.memory("tenant")}
        await receive()
        await self.may_accept.wait()
        await send({"type": "websocket.accept"})
        while True:
            await self.may_receive.acquire()
            message = await receive()
            self.messages.put_nowait(message)
            if message["type"] == "websocket.disconnect":
                return

    async def open(self) -> None:
        self.client.send_request(self.client.connect())
        self.send(b"".join(self.client.data_to_send()))
        self.may_accept.set()
        await run_loop(5)
        self.client.receive_data(self.transport.sent)
        self.client.events_received()
        self.transport.sent = b""

    def send(self, data: bytes) -> None:
        """Deliver `data` in one call, as a transport does, whether reading is paused or not."""
        self.server.data_received(data)

    def flood(self, data: bytes) -> int:
        """Deliver `data` repeatedly until reading is paused, and return the number of deliveries.

        The maximum is libuv's number of reads in one turn of the event loop.
        """
        for count in range(READS_PER_TURN):
            if self.transport.is_paused:
                return count
            self.send(data)
        return READS_PER_TURN

    async def end(self) -> None:
        """Lose the connection, and wait until the application has noticed."""
        self.server.connection_lost(None)
        while self.server.tasks:
            self.may_receive.release()
            await asyncio.sleep(0)

    @property
    def close(self) -> Close | None:
        """Return the close frame that the server has sent, if any."""
        self.client.receive_data(self.transport.sent)
        self.transport.sent = b""
        return self.client.close_rcvd


async def run_loop(count: int) -> None:
    """Run `count` turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def frame(opcode: Opcode, data: bytes = b"", fin: bool = True) -> bytes:
    """Return a client's frame."""
    return Frame(opcode, data, fin).serialize(mask=True)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """Yield an open connection."""
    peer = Peer()
    await peer.open()
    yield peer
    await peer.end()


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG])
async def test_a_flood_of_control_frames_is_refused_within_its_first_slice(peer: Peer, opcode: Opcode):
    """Empty pings and unsolicited pongs carry no message that could pause reading."""
    handled = count_frames(peer)
    peer.send(frame(opcode) * (READ_BYTES // 6))
    assert handled[0] <= MAX_FRAMES_PER_SLICE
    assert peer.close == Close(1008, f"more than {MAX_CONTROL_FRAMES_PER_SECOND} control frames in a second")
    peer.send(os.urandom(READ_BYTES))  # the rest is discarded
    assert not peer.transport.is_closed and not peer.server._unparsed and handled[0] <= MAX_FRAMES_PER_SLICE


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        (frame(Opcode.PING) * (MAX_CONTROL_FRAMES_PER_SECOND + 1), True),
        (frame(Opcode.CLOSE, Close(FLOOD_CLOSE_CODE, "").serialize()), False),
    ],
    ids=["flood", "close frame"],  # not the data: its mask is random
)
async def test_a_refusal_differs_from_a_close_code_of_the_client(data: bytes, is_refused: bool):
    """It is marked in the scope, and the end of the connection is reported once."""
    peer, ends = Peer(), []
    peer.server.on_lost = lambda: ends.append(None)
    await peer.open()
    peer.send(data)
    peer.may_receive.release()
    message = await asyncio.wait_for(peer.messages.get(), HANG_SECONDS)
    assert message["code"] == FLOOD_CLOSE_CODE
    assert peer.server.scope["extensions"].get(CLOSE_CODE_EXTENSION) == (
        {"code": FLOOD_CLOSE_CODE} if is_refused else None
    )
    assert not ends
    await peer.end()
    assert len(ends) == 1


async def test_the_maximum_number_of_control_frames_is_answered(peer: Peer):
    """Every ping gets its pong, and the connection stays open."""
    peer.send(frame(Opcode.PING, b"x") * MAX_CONTROL_FRAMES_PER_SECOND)
    await run_loop(10)
    assert peer.transport.sent == Frame(Opcode.PONG, b"x").serialize(mask=False) * MAX_CONTROL_FRAMES_PER_SECOND
    assert peer.close is None


async def test_a_message_of_too_many_fragments_is_refused(peer: Peer):
    """Empty fragments have no size that the limit of a message would see."""
    peer.send(frame(Opcode.TEXT, fin=False) + frame(Opcode.CONT, fin=False) * (READ_BYTES // 6))
    await run_loop(READ_BYTES // MAX_PARSE_BYTES)
    assert peer.close == Close(1008, f"more than {MAX_FRAGMENTS} fragments in a message")
    assert not peer.server.frames


async def test_a_message_of_many_fragments_is_assembled(peer: Peer):
    """The number of fragments is the maximum."""
    fragments = frame(Opcode.TEXT, b"a", fin=False) + frame(Opcode.CONT, b"b", fin=False) * (MAX_FRAGMENTS - 2)
    peer.send(fragments + frame(Opcode.CONT, b"c"))
    peer.may_receive.release()
    message = await asyncio.wait_for(peer.messages.get(), HANG_SECONDS)
    assert message["text"] == "a" + "b" * (MAX_FRAGMENTS - 2) + "c"


async def test_parsing_stops_while_the_application_does_not_receive(peer: Peer):
    """Reading is paused in the meantime, and all messages arrive in order afterwards."""
    count = READ_BYTES // 16
    peer.send(b"".join(frame(Opcode.TEXT, b"%06d" % number) for number in range(count)))
    await run_loop(20)
    assert peer.transport.is_paused and peer.server.queue.qsize() <= MAX_FRAMES_PER_SLICE
    texts = []
    for _ in range(count):
        peer.may_receive.release()
        texts.append((await asyncio.wait_for(peer.messages.get(), HANG_SECONDS))["text"])
    assert texts == [f"{number:06d}" for number in range(count)]
    await run_loop(3)
    assert not peer.transport.is_paused


async def test_a_flood_of_messages_is_read_as_fast_as_the_application_receives(peer: Peer):
    """Data is parsed before more is read, for any number of turns between two messages."""
    read = frame(Opcode.TEXT, b"x" * 10) * (READ_BYTES // 16)
    longest = [0]

    def flood() -> None:
        peer.flood(read)
        longest[0] = max(longest[0], len(peer.server._unparsed))

    peer.transport.on_resume = flood
    flood()
    for _ in range(300):
        peer.may_receive.release()
        await run_loop(3)
    assert longest[0] <= 2 * READ_BYTES


async def test_frames_sent_with_the_handshake_wait_for_its_answer():
    """No frame is lost, and no pong is sent before the answer."""
    peer = Peer()
    peer.client.send_request(peer.client.connect())
    peer.send(b"".join(peer.client.data_to_send()))
    peer.send(frame(Opcode.PING, b"early") + frame(Opcode.TEXT, b"first"))
    await run_loop(5)
    assert peer.transport.sent == b"" and peer.transport.is_paused
    peer.may_accept.set()
    peer.may_receive.release()
    assert (await asyncio.wait_for(peer.messages.get(), HANG_SECONDS))["text"] == "first"
    head, _, rest = peer.transport.sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101") and rest == Frame(Opcode.PONG, b"early").serialize(mask=False)
    await peer.end()


def count_frames(peer: Peer) -> list[int]:
    """Count the frames that the server's parser has created."""
    count, receive_frame = [0], peer.server.conn.recv_frame

    def counting_recv_frame(parsed: Frame) -> None:
        count[0] += 1
        receive_frame(parsed)

    peer.server.conn.recv_frame = counting_recv_frame  # type: ignore[method-assign]
    return count


async def receive(peer: Peer) -> dict:
    """Let the application receive one message, and return it."""
    peer.may_receive.release()
    return await asyncio.wait_for(peer.messages.get(), 10)


async def test_a_large_message_is_not_parsed_before_memory_is_reserved(peer: Peer):
    """Reading stops until another message is done; the memory is returned when the application takes the next one."""
    text = b"a" * (4 * FREE_BYTES)
    with peer.budget.memory("tenant") as other:
        await other.reserve(1 << 20)
        peer.send(frame(Opcode.TEXT, text))
        await run_loop(5)
        assert peer.transport.is_paused and peer.server.queue.empty() and len(peer.server._unparsed) > len(text) // 2
    await run_loop(100)
    assert (await receive(peer))["text"] == text.decode()
    assert 0 < peer.budget.reserved <= MEMORY_PER_BYTE * (len(text) + 2 * MAX_PARSE_BYTES)
    peer.send(frame(Opcode.TEXT, b"small"))
    assert (await receive(peer))["text"] == "small" and peer.budget.reserved == 0


async def test_a_large_message_without_memory_is_refused(peer: Peer, monkeypatch: pytest.MonkeyPatch):
    """The close code tells the client to try again later, and nothing stays reserved."""
    monkeypatch.setattr(body_budget, "MAX_WAIT_SECONDS", 0.0)
    with peer.budget.memory("tenant") as other:
        await other.reserve(1 << 20)
        peer.send(frame(Opcode.TEXT, b"a" * (2 * FREE_BYTES)))
        async with asyncio.timeout(10):
            while peer.close is None:
                await asyncio.sleep(0)
    assert peer.close.code == NO_MEMORY_CLOSE_CODE and peer.budget.reserved == 0


async def test_a_lost_connection_returns_the_memory_of_its_messages(peer: Peer):
    """One is incomplete, and another one still waits for memory."""
    budget, lost = peer.budget, [Peer(), Peer()]
    for each in lost:
        each.budget = budget
        await each.open()
        each.send(frame(Opcode.TEXT, b"a" * (4 * FREE_BYTES))[: 2 * FREE_BYTES])
    await run_loop(100)
    assert budget.reserved == BUDGET_BYTES and budget.waiting == 1
    for each in reversed(lost):
        await each.end()
    await run_loop(5)
    assert budget.reserved == 0 and budget.waiting == 0
