"""How events look on the wire."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import sse
from app.following import AT_ONCE
from app.routes import answers
from app.schemas.answers import UsageReports
from app.schemas.chat import ChatFormat
from app.streams import Delta, StreamLog, Usage
from engine.types import Phase, StatusEvent
from tests.app.test_text import byte_level


@given(st.text())
def test_an_event_is_one_line_for_every_client(text: str):
    """However a client cuts lines, `data:` is one of them and holds the whole JSON."""
    log = StreamLog("stream", "epoch", "")
    lines = sse.block(log, 1, msgspec.json.encode({"content": text})).decode().splitlines()
    assert lines[0] == "id: stream.epoch.1"
    assert msgspec.json.decode(lines[1].removeprefix("data: ")) == {"content": text}
    assert lines[2:] == [""]


class Answer:
    """As much of a generation as a stream of its log looks at."""

    def __init__(self) -> None:
        self.log = StreamLog("s", "e", "")
        self.encoder = ChatFormat("m", "default", byte_level(), UsageReports())
        self.left = 0

    def reader_left(self) -> None:
        self.left += 1

    def say(self, count: int) -> None:
        for _ in range(count):
            self.log.append(Delta(0, f"<{len(self.log.records)}>", 1))
        self.log.announce()

    def end(self) -> None:
        self.log.append(Usage(1, 1, 0))
        self.log.announce()


class Socket:
    """An ASGI `send` that waits while it is full, as uvicorn's does before it writes, and what writes at once."""

    def __init__(self, extensions: bool = True) -> None:
        self.sent = b""
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.has_left = asyncio.Event()
        self.scope: dict = {"type": "http", "method": "POST"}
        if extensions:
            self.scope["extensions"] = {AT_ONCE: {"write": self.write}}

    async def send(self, message) -> None:
        await asyncio.sleep(0) if message["type"] == "http.response.start" else None
        if not self.has_room.is_set():
            await self.has_room.wait()
        self.sent += message.get("body", b"")

    def write(self, piece: bytes) -> bool:
        if not self.has_room.is_set():
            return False
        self.sent += piece
        return True

    def leave(self) -> None:
        self.has_left.set()

    async def receive(self) -> dict:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def serve(self, answer: Answer) -> None:
        response = answers.stream(answer)
        await response(self.scope, self.receive, self.send)

    def seqs(self) -> list[int]:
        ids = [line for line in self.sent.split(b"\n") if line.startswith(b"id: ")]
        return [int(line.rsplit(b".", 1)[1]) for line in ids]


@given(
    st.lists(st.one_of(st.integers(1, 3), st.sampled_from(["full", "room", "turn", "status"])), max_size=30),
    st.booleans(),
    st.sampled_from([0.0005, 15.0]),
)
@settings(max_examples=200)
def test_every_record_is_sent_once_in_order_however_the_socket_stalls(script, extensions, ping_seconds):
    """It fills up and drains at any moment, between two records and in the middle of one being sent, pings come as they
    will, and a server that cannot write at once has every piece sent."""

    async def play() -> None:
        answer, socket = Answer(), Socket(extensions)
        serving = asyncio.create_task(socket.serve(answer))
        for action in script:
            match action:
                case "full":
                    socket.has_room.clear()
                case "room":
                    socket.has_room.set()
                case "turn":
                    await asyncio.sleep(0.001)
                case "status":
                    answer.log.status = StatusEvent("s", 0, Phase.DECODE, 0)
                    answer.log.announce()
                case int():
                    answer.say(action)
        socket.has_room.set()
        answer.end()
        await asyncio.wait_for(serving, 10)
        assert socket.seqs() == sorted(set(socket.seqs()))
        assert [f"<{i}>" in socket.sent.decode() for i in range(len(answer.log.records) - 1)].count(False) == 0
        assert socket.sent.endswith(b"data: [DONE]\n\n")
        assert (answer.left, answer.log.readers, answer.log.followers) == (1, 0, ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "PING", (ping_seconds, sse.PING[1]))
        asyncio.run(play())


async def test_a_token_is_sent_before_announce_returns():
    """No task is woken for it: it leaves before the next stream's token is looked at."""
    answer, socket = Answer(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    answer.say(1)
    await asyncio.sleep(0.05)
    answer.say(1)
    assert "<1>" in socket.sent.decode()
    answer.end()
    await asyncio.wait_for(serving, 10)


async def test_who_asks_for_the_head_alone_is_no_reader():
    """It neither takes the answer with it when it goes, nor lets an answer that nobody reads go on for longer."""
    answer, socket = Answer(), Socket()
    socket.scope["method"] = "HEAD"
    await asyncio.wait_for(socket.serve(answer), 5)
    assert (answer.left, socket.sent) == (0, b"")


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_reader_that_leaves_ends_its_stream_at_once(is_full: bool):
    """While nothing is said, and while what is said waits for room."""
    answer, socket = Answer(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    await asyncio.sleep(0.01)
    if is_full:
        socket.has_room.clear()
        answer.say(1)
        await asyncio.sleep(0.01)
    socket.leave()
    await asyncio.wait_for(serving, 5)
    assert (answer.left, answer.log.readers, answer.log.followers) == (1, 0, ())


async def test_a_silent_stream_is_pinged(monkeypatch: pytest.MonkeyPatch):
    """Proxies cut connections on which nothing comes. What is said behind a ping comes as ever."""
    monkeypatch.setattr(sse, "PING", (0.02, sse.PING[1]))
    answer, socket = Answer(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    async with asyncio.timeout(10):
        while socket.sent.count(b": ping\n\n") < 3:
            await asyncio.sleep(0.01)
    answer.say(1)
    answer.end()
    await asyncio.wait_for(serving, 10)
    assert "<0>" in socket.sent.decode() and socket.sent.endswith(b"data: [DONE]\n\n")


async def test_what_runs_out_of_time_inside_a_stream_is_not_taken_for_its_reader():
    """It is our mistake, and reaches the log as one."""

    async def content():
        yield b"data: x\n\n"
        raise TimeoutError("inside")

    left = []
    response = sse.EventStream(lambda _: content(), lambda: left.append(True))
    with pytest.raises(TimeoutError, match="inside"):
        await response({"type": "http", "method": "GET"}, asyncio.Event().wait, Socket().send)
    assert left == [True]


@pytest.mark.parametrize("message", ["http.response.start", "http.response.body"])
async def test_a_task_that_is_cancelled_is_cancelled(message: str):
    """The server may end a request's task: that is nobody's leaving, and must not be swallowed."""
    answer, socket = Answer(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    if message == "http.response.start":
        socket.has_room.clear()
    await asyncio.sleep(0.01)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (answer.left, answer.log.readers, answer.log.followers) == (1, 0, ())


async def test_a_record_that_cannot_be_told_ends_its_own_stream_alone(monkeypatch: pytest.MonkeyPatch):
    """Whoever writes the log does not hear of it."""

    def speechless(*_) -> bytes:
        raise ValueError("no words")

    answer, socket = Answer(), Socket()
    serving = asyncio.create_task(socket.serve(answer))
    await asyncio.sleep(0.01)
    monkeypatch.setattr(ChatFormat, "encode", speechless)
    answer.say(1)
    with pytest.raises(ValueError, match="no words"):
        await asyncio.wait_for(serving, 10)
    assert answer.left == 1
